"""Plays a night on call: `python -m oncall MINUTES`, with so many minutes of health to count false alarms in.

Names of queries after that, with - for a space, leave out the others.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from job_environment import job_environment
from rich.console import Console
from rich.table import Table

from oncall.night import LATE, Case, play
from oncall.ways import WAYS


def main() -> int:
    """Play it, and print the table: 1 if anything is wrong with it."""
    # As wide as a sentence, for the command line.
    os.environ.update(job_environment(os.environ) | {"PYSPARK_PYTHON": sys.executable, "COLUMNS": "1000"})
    minutes = float(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="night-", ignore_cleanup_errors=True) as folder:
        cases = play(Path(folder), minutes, lambda said: print(said, flush=True), sys.argv[2:])
    screen = Console(width=140)
    screen.print(table_of(cases, minutes))
    wrong = [f"{case.situation.name}: {one}" for case in cases for one in case.wrong]
    for one in wrong:
        screen.print(one, style="red", markup=False)
    return int(bool(wrong))


def table_of(cases: list[Case], minutes: float) -> Table:
    """Return what was seen, and when."""
    table = Table(
        title=f"Seconds from the fault until each way names its cause, at most {LATE:.0f}; "
        f"health before: {minutes:g} minutes"
    )
    for heading in (
        "query",
        "finding",
        *WAYS,
        "remedy, from docs/runbook.md",
        "well after",
        "sink",
        "false alarms",
    ):
        table.add_column(heading, justify="right" if heading in (*WAYS, "well after", "sink") else "left")
    for case in cases:
        what = case.situation
        took = [f"{case.seen[way]:.0f}" if way in case.seen else "-" for way in WAYS]
        table.add_row(
            what.name,
            f"{what.code} ({what.level})" if what.code else "none",
            *took,
            what.remedy or "-",
            "-" if case.well is None else f"{case.well:.0f}",
            f"{case.job.count:,}" if case.whole else "differs",
            str(len(case.beside) or "none"),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
