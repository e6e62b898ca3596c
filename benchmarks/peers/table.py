"""The table of ours beside others, its bars, and the sentence that says where ours loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.plots import Bars, Panel
from benchmarks.processors import Rate

__all__ = ["Result", "bars", "losses", "rows"]


@dataclass(frozen=True, slots=True)
class Result:
    """The rate of one reader; those of one group are compared. Without a rate, the reason why it has none."""

    group: str
    name: str
    rate: Rate | None
    is_ours: bool = False
    reason: str = ""


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Return a row for each result, the fastest of a group first: both rates, and what they are of ours."""
    table = []
    for group, ours, members in _groups(results):
        for one in members:
            title = f"{group}: {one.name}"
            if one.rate is None:
                table.append([title, "not measured", "", "", ""])
                continue
            table.append(
                [
                    title,
                    f"{one.rate.clock / 1000:,.0f} k",
                    f"{one.rate.clock / ours.clock:.2f} x",
                    f"{1e6 / one.rate.processors:,.2f}",
                    f"{ours.processors / one.rate.processors:.2f} x",
                ]
            )
    return table


def losses(results: Sequence[Result]) -> str:
    """Return the sentences that say to whom ours loses, by how much, and who could not be measured."""
    lost: dict[str, list[str]] = {}
    unmeasured = []
    for group, ours, members in _groups(results):
        for one in members:
            if one.rate is None:
                unmeasured.append(f"{group}, {one.name}: {one.reason}")
                continue
            for measure, theirs, own in (
                ("by the clock", one.rate.clock, ours.clock),
                ("in processor time", one.rate.processors, ours.processors),
            ):
                if theirs > own:
                    lost.setdefault(one.name, []).append(f"{group} {measure} {theirs / own:.2f} x")
    against = "; ".join(f"to {name}: {', '.join(parts)}" for name, parts in lost.items())
    text = f"Ours loses {against}." if lost else "Ours loses to none of them."
    return f"{text} Not measured: {'; '.join(unmeasured)}." if unmeasured else text


def bars(name: str, title: str, unit: str, results: Sequence[Result]) -> Bars:
    """Return the bars of both rates: a bar for each group and reader, in the order of the first group."""
    groups = _groups(results)
    names = [one.name for one in groups[0][2]]
    rates = {group: {one.name: one.rate for one in members} for group, _, members in groups}
    clock: dict[str, list[float | None]] = {}
    processors: dict[str, list[float | None]] = {}
    for group, by_name in rates.items():
        known = [by_name.get(name) for name in names]
        clock[group] = [None if rate is None else rate.clock / 1000 for rate in known]
        processors[group] = [None if rate is None else 1e6 / rate.processors for rate in known]
    panels = [Panel(f"thousand {unit}s a second", clock), Panel(f"µs of CPU a {unit}", processors)]
    return Bars(name, title, names, panels)


def _groups(results: Sequence[Result]) -> list[tuple[str, Rate, list[Result]]]:
    """The groups in their order, each with the rate of ours and its members, the fastest first."""
    found = []
    for group in dict.fromkeys(one.group for one in results):
        members = [one for one in results if one.group == group]
        members.sort(key=lambda one: -(one.rate.clock if one.rate else 0.0))
        [ours] = [one.rate for one in members if one.is_ours]
        assert ours is not None
        found.append((group, ours, members))
    return found
