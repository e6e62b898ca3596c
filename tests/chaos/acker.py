"""Acks what a job has written, or says that it failed, until it is killed: `python acker.py ASKED.json`.

Before it confirms a record it notes that in `acker/<pid>.jsonl`. Another one that follows it begins anew: to confirm
twice changes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from kinesis_trident import Acks, KinesisTridentError


def refused(row: dict[str, object]) -> bool:
    return row["kind"] == "bad" or (row["kind"] == "flaky" and row["attempt"] == 1)


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(asked["folder"])
    answered: set[tuple[str, int]] = set()
    with (folder / "acker" / f"{os.getpid()}.jsonl").open("a") as notes:
        while True:
            rows = [row for path in (folder / "out").glob("*.json") for row in json.loads(path.read_text())]
            new = [row for row in rows if (row["id"], row["attempt"]) not in answered]
            try:
                if new:
                    answer(asked["options"], new, notes)
                    answered |= {(row["id"], row["attempt"]) for row in new}
            except KinesisTridentError as error:
                print(error, flush=True)
            time.sleep(0.1)


def answer(options, new, notes):  # type: ignore[no-untyped-def]
    """Confirm or refuse rows, of which nobody may have read anything if ZooKeeper does not answer."""
    for row in new:
        if not refused(row):
            notes.write(json.dumps({"acked": row["n"]}) + "\n")
    notes.flush()
    with Acks(options["applicationName"], options) as acks:
        for attempt in {row["attempt"] for row in new}:
            of = [row for row in new if row["attempt"] == attempt]
            acks.ack([row["id"] for row in of if not refused(row)], attempt=attempt)
            acks.fail([row["id"] for row in of if refused(row)], "no", attempt=attempt)


if __name__ == "__main__":
    main()
