"""The figures of a run, as a section of docs/reliability/figures.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from job_environment import ROOT

from benchmarks.report import Section
from chaos.play import Outcome
from chaos.schedule import FAULTS

__all__ = ["PAGE", "line_of", "section_of"]

PAGE = ROOT / "docs" / "reliability" / "figures.md"


def line_of(outcome: Outcome) -> str:
    """Return what is printed of a schedule."""
    schedule = outcome.schedule
    if outcome.left_out:
        return f"seed {schedule.seed}: left out, {outcome.left_out}; {schedule}"
    figures = ", ".join(f"{outcome.figures[what]} {what}" for what in ("lives", "batches", "records"))
    came = "FAILED" if outcome.broken else "exact"
    line = f"seed {schedule.seed}: {came}, {outcome.seconds:.0f} s, {figures}; {schedule}"
    if not outcome.broken:
        return line
    broken = "".join(f"\n  {one}" for one in outcome.broken)
    return f"{line}{broken}\n  again: make faults SEED={schedule.seed} COUNT=1"


def section_of(outcomes: Sequence[Outcome]) -> Section:
    """Return the figures: how often each fault was met, and how many of those schedules kept every promise."""
    played = [one for one in outcomes if not one.left_out]
    together = _sum(played)
    rows = [_row(fault, [one for one in played if fault in one.figures]) for fault in FAULTS]
    rows.append(_row("all", played))
    seeds = [one.schedule.seed for one in outcomes]
    left_out = f" {len(outcomes) - len(played)} were left out." if len(played) < len(outcomes) else ""
    exact = sum(not one.broken for one in played)
    return Section(
        name="faults",
        title="Figures",
        command=f"make faults SEED={min(seeds)} COUNT={len(seeds)}",
        columns=["fault", "schedules", "all promises kept", "lives", "batches", "records"],
        rows=rows,
        note=f"{len(played)} schedules were played, {exact} of them kept every promise.{left_out} The observer "
        f"looked at {together['looks']:,} moves of checkpoints and at {together['deliveries']:,} deliveries, and the "
        f"specification followed {together['steps']:,} steps.",
    )


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    figures = _sum(outcomes)
    exact = sum(not one.broken for one in outcomes)
    return [name, *map(str, (len(outcomes), exact, figures["lives"], figures["batches"], figures["records"]))]


def _sum(outcomes: Sequence[Outcome]) -> Counter[str]:
    return sum((Counter(one.figures) for one in outcomes), Counter[str]())
