"""Whether reports cover a batch: pure sums over what operators took and made, against the pins and each other.

An operator has judged a shard when, in one run of it, the anchors that it took are those that were there for it: the
pin's for an operator on the source's rows, else what its inputs made. (Of an operator behind a function of the user's
nothing can be said: there, what it made is only held against what was taken further down.) A run is one stage: its
tasks' reports are added up. One report alone may do too, where one task had the whole shard. Nothing needs to be known
of how often the user's function made Spark compute a stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from kinesis_trident.bolt.tracking.reports import FailedRun, ReportKey, Reports, merged
from kinesis_trident.bolt.tracking.spans import WHOLE

__all__ = [
    "OPEN",
    "SOURCE",
    "Total",
    "Wiring",
    "failures",
    "intervals",
    "lost",
    "spans_of",
    "uncovered",
    "whole",
]

SOURCE = ""
"""The name of the source among the inputs of an operator."""

OPEN = "__open"
"""In the place of an input whose tuples went through a function of the user's: what came out of it is not known."""

Total = tuple[int, int]
"""Number of anchors, XOR of their edges."""

Part = tuple[int, int]
"""A shard's index, and a span of its turn (`bolt.tracking.spans`)."""

Wiring = Mapping[str, Sequence[str]]
"""Operators in an order in which each comes after its inputs, with the names of those."""


def uncovered(wiring: Wiring, reports: Reports, turns: Mapping[int, Total]) -> list[tuple[str, int]]:
    """The (operator, shard index) whose input was not judged to its end; `turns` has the pins' totals by shard."""
    wholes = {(shard, WHOLE): total for shard, total in turns.items()}
    return [(operator, shard) for operator, (shard, _) in _missing(wiring, reports, wholes)]


def lost(wiring: Wiring, reports: Reports, spans: Mapping[Part, Total]) -> dict[Part, str]:
    """The spans whose sums disagree, each with the first operator that did not take what was made for it.

    `spans` has what the source gave of each.
    """
    found: dict[Part, str] = {}
    for operator, part in _missing(wiring, reports, spans):
        found.setdefault(part, operator)
    return found


def spans_of(reports: Reports, operator: str) -> dict[Part, Total]:
    """What an operator took of each span."""
    found: dict[Part, Total] = {}
    for key in reports:
        if key.operator == operator:
            part = key.shard, key.span
            found[part] = _sum([found.get(part, (0, 0)), (key.rows, key.consumed)])
    return found


def whole(reports: Reports) -> Reports:
    """Reports of spans, added up to those of whole turns."""
    found: Reports = {}
    sums: dict[ReportKey, tuple[Total, Total]] = {}
    for key in reports:
        of = key._replace(rows=0, consumed=0, emitted=0, produced=0, span=WHOLE)
        taken, made = sums.get(of, ((0, 0), (0, 0)))
        sums[of] = (
            _sum([taken, (key.rows, key.consumed)]),
            _sum([made, (key.emitted, key.produced)]),
        )
    for of, ((rows, consumed), (emitted, produced)) in sums.items():
        found[of._replace(rows=rows, consumed=consumed, emitted=emitted, produced=produced)] = ()
    return found


def _missing(wiring: Wiring, reports: Reports, totals: Mapping[Part, Total]) -> list[tuple[str, Part]]:
    runs = _runs(reports)
    missing = []
    for part, total in totals.items():
        made: dict[str, set[Total]] = {SOURCE: {total}}
        for operator, inputs in wiring.items():
            wanted = {_sum(parts) for parts in product(*(made.get(name, ()) for name in inputs))}
            open_ = OPEN in inputs
            found = {out for taken, out in runs[operator, part] if open_ or taken in wanted}
            if open_ or (0, 0) in wanted:
                found.add((0, 0))
            if not found:
                missing.append((operator, part))
            made[operator] = found
    return missing


def failures(wiring: Wiring, reports: Reports, turns: Mapping[int, Total]) -> dict[int, list[FailedRun]]:
    """What failed, by shard index: the union over all runs over the pinned rows.

    Ordinals mean nothing beyond one reading of a turn: runs that saw more rows of the source than the pin holds were
    over another reading, and the one that is pinned counts.
    """
    read: dict[tuple[str, int, int], int] = defaultdict(int)
    for key in reports:
        read[key.operator, key.shard, key.stage] += key.rows
    found: dict[int, list[FailedRun]] = {}
    for key, runs in reports.items():
        if key.operator not in wiring or key.shard not in turns or not runs:
            continue
        alone = turns[key.shard] == (key.rows, key.consumed)
        of_source = tuple(wiring[key.operator]) == (SOURCE,)
        if alone or not of_source or read[key.operator, key.shard, key.stage] <= turns[key.shard][0]:
            found.setdefault(key.shard, []).extend(runs)
    return found


def intervals(runs: Iterable[FailedRun]) -> list[FailedRun]:
    """Runs without their positions, as disjoint intervals of ordinals with a reason each."""
    return list(merged(run._replace(first="", last="", prev=None) for run in runs))


def _runs(reports: Reports) -> Mapping[tuple[str, Part], set[tuple[Total, Total]]]:
    """What complete runs may have taken and made, by operator and part: stages summed up, and single tasks."""
    stages: dict[tuple[str, Part, int], list[ReportKey]] = defaultdict(list)
    for key in reports:
        stages[key.operator, (key.shard, key.span), key.stage].append(key)
    found: dict[tuple[str, Part], set[tuple[Total, Total]]] = defaultdict(set)
    for (operator, part, _), keys in stages.items():
        pairs = [((key.rows, key.consumed), (key.emitted, key.produced)) for key in keys]
        found[operator, part].update(pairs)
        # A task that ran twice and did not say the same both times: no sum of this stage can be trusted.
        if len({key.partition for key in keys}) == len(keys):
            found[operator, part].add((_sum(taken for taken, _ in pairs), _sum(made for _, made in pairs)))
    return found


def _sum(parts: Iterable[Total]) -> Total:
    count = value = 0
    for more, xor in parts:
        count += more
        value ^= xor
    return count, value
