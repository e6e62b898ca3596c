"""Checks that reports cover a batch: compares sums of operators' inputs and outputs with the pins and each other.

An operator has judged a shard if, in one of its runs, its input anchors are all the expected ones: the pin's for an
operator on the source's rows, else the output of its inputs. (For an operator after a user's function nothing is
known of its input: only its output is compared with the inputs downstream.) A run is one stage: the sums of its
tasks' reports. Where each came from equally many tasks, it counts once: it does not matter how often the user's
function made Spark compute a stage, or a frame in one. Or a run is all stages together: several stages that read a
cached frame at once share its partitions, and each is computed in the stage that comes first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product

from kinesis_trident.bolt.tracking.failed import NONE, Failed
from kinesis_trident.bolt.tracking.reports import ReportKey, Reports
from kinesis_trident.bolt.tracking.spans import WHOLE
from kinesis_trident.tracker.sums import XorSum

SOURCE = ""
"""The name of the source, as an input of an operator."""

OPEN = "__open"
"""Stands for an input whose tuples went through a user's function: its output is unknown."""

Part = tuple[int, int]
"""A shard's index and a span of its turn (`bolt.tracking.spans`)."""

_Content = tuple[int, tuple[XorSum, XorSum]]
"""What a report says: the span, and the totals of input and output."""

Wiring = Mapping[str, Sequence[str]]
"""Operators with the names of their inputs, ordered such that each comes after its inputs."""


def find_uncovered(wiring: Wiring, reports: Reports, turns: Mapping[int, XorSum]) -> list[tuple[str, int]]:
    """Return each (operator, shard index) whose input was not fully judged; `turns` has the pins' totals by shard."""
    wholes = {(shard, WHOLE): total for shard, total in turns.items()}
    return [(operator, shard) for operator, (shard, _) in _find_missing(wiring, reports, wholes)]


def find_lost(wiring: Wiring, reports: Reports, spans: Mapping[Part, XorSum]) -> dict[Part, str]:
    """Return the spans whose sums disagree, each with the first operator that did not get its full input.

    `spans` has the source's total of each.
    """
    found: dict[Part, str] = {}
    for operator, part in _find_missing(wiring, reports, spans):
        found.setdefault(part, operator)
    return found


def spans_of(reports: Reports, operator: str) -> dict[Part, XorSum]:
    """Return an operator's input of each span."""
    found: dict[Part, XorSum] = {}
    for key in reports:
        if key.operator == operator:
            part = key.shard, key.span
            found[part] = XorSum.over([found.get(part, XorSum()), key.taken])
    return found


def whole(reports: Reports) -> Reports:
    """Add reports of spans up to reports of whole turns."""
    found: Reports = {}
    sums: dict[ReportKey, tuple[XorSum, XorSum]] = {}
    for key in reports:
        of = key._replace(rows=0, consumed=0, emitted=0, produced=0, span=WHOLE)
        taken, made = sums.get(of, (XorSum(), XorSum()))
        sums[of] = XorSum.over([taken, key.taken]), XorSum.over([made, key.made])
    for of, ((rows, consumed), (emitted, produced)) in sums.items():
        found[of._replace(rows=rows, consumed=consumed, emitted=emitted, produced=produced)] = NONE
    return found


def _find_missing(wiring: Wiring, reports: Reports, totals: Mapping[Part, XorSum]) -> list[tuple[str, Part]]:
    runs = _runs(reports)
    missing = []
    for part, total in totals.items():
        made: dict[str, set[XorSum]] = {SOURCE: {total}}
        for operator, inputs in wiring.items():
            wanted = {XorSum.over(parts) for parts in product(*(made.get(name, ()) for name in inputs))}
            open_ = OPEN in inputs
            found = {out for taken, out in runs[operator, part] if open_ or taken in wanted}
            if open_ or XorSum() in wanted:
                found.add(XorSum())
            if not found:
                missing.append((operator, part))
            made[operator] = found
    return missing


def failures(wiring: Wiring, reports: Reports, turns: Mapping[int, XorSum]) -> dict[int, Failed]:
    """Return the failures by shard index: the union over all runs over the pinned rows.

    Ordinals are valid only within one reading of a turn: runs that saw more rows of the source than the pin holds
    had another reading, and only the pinned one counts.
    """
    read: dict[tuple[str, int, int], int] = defaultdict(int)
    for key in reports:
        read[key.operator, key.shard, key.stage] += key.rows
    found: dict[int, list[Failed]] = {}
    for key, failed in reports.items():
        if key.operator not in wiring or key.shard not in turns or not failed:
            continue
        alone = turns[key.shard] == key.taken
        of_source = tuple(wiring[key.operator]) == (SOURCE,)
        if alone or not of_source or read[key.operator, key.shard, key.stage] <= turns[key.shard][0]:
            found.setdefault(key.shard, []).append(failed)
    return {shard: NONE.union(*several) for shard, several in found.items()}


def _runs(reports: Reports) -> Mapping[tuple[str, Part], set[tuple[XorSum, XorSum]]]:
    """Return the possible totals of complete runs, by operator and part: sums of one stage, and of all."""
    stages: dict[tuple[str, int], dict[int, dict[int, set[_Content]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(set))
    )
    for key in reports:
        content = key.span, (key.taken, key.made)
        stages[key.operator, key.shard][key.stage][key.partition].add(content)
    found: dict[tuple[str, Part], set[tuple[XorSum, XorSum]]] = defaultdict(set)
    for (operator, shard), by_stage in stages.items():
        sums: dict[int, list[tuple[XorSum, XorSum]]] = defaultdict(list)
        for by_task in by_stage.values():
            for span, pairs in _pairs_of(by_task.values()).items():
                sums[span].append(_sum_pairs(pairs))
        for span, of_stages in sums.items():
            found[operator, (shard, span)] = {*of_stages, _sum_pairs(of_stages)}
    return found


def _pairs_of(tasks: Iterable[set[_Content]]) -> Mapping[int, list[tuple[XorSum, XorSum]]]:
    """Return the totals that count of a stage's tasks, by span."""
    times = Counter(map(frozenset, tasks))
    # A union of the user's may have computed the same tasks several times.
    counted = times if len(set(times.values())) == 1 else times.elements()
    pairs: dict[int, list[tuple[XorSum, XorSum]]] = defaultdict(list)
    for span, pair in chain.from_iterable(counted):
        pairs[span].append(pair)
    return pairs


def _sum_pairs(pairs: Sequence[tuple[XorSum, XorSum]]) -> tuple[XorSum, XorSum]:
    return XorSum.over(taken for taken, _ in pairs), XorSum.over(made for _, made in pairs)
