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

SOURCE = ""
"""The name of the source, as an input of an operator."""

OPEN = "__open"
"""Stands for an input whose tuples went through a user's function: its output is unknown."""

Total = tuple[int, int]
"""The number of anchors and the XOR of their edges."""

Part = tuple[int, int]
"""A shard's index and a span of its turn (`bolt.tracking.spans`)."""

_Content = tuple[int, tuple[Total, Total]]
"""What a report says: the span, and the totals of input and output."""

Wiring = Mapping[str, Sequence[str]]
"""Operators with the names of their inputs, ordered such that each comes after its inputs."""


def find_uncovered(wiring: Wiring, reports: Reports, turns: Mapping[int, Total]) -> list[tuple[str, int]]:
    """Return each (operator, shard index) whose input was not fully judged; `turns` has the pins' totals by shard."""
    wholes = {(shard, WHOLE): total for shard, total in turns.items()}
    return [(operator, shard) for operator, (shard, _) in _find_missing(wiring, reports, wholes)]


def find_lost(wiring: Wiring, reports: Reports, spans: Mapping[Part, Total]) -> dict[Part, str]:
    """Return the spans whose sums disagree, each with the first operator that did not get its full input.

    `spans` has the source's total of each.
    """
    found: dict[Part, str] = {}
    for operator, part in _find_missing(wiring, reports, spans):
        found.setdefault(part, operator)
    return found


def spans_of(reports: Reports, operator: str) -> dict[Part, Total]:
    """Return an operator's input of each span."""
    found: dict[Part, Total] = {}
    for key in reports:
        if key.operator == operator:
            part = key.shard, key.span
            found[part] = _sum([found.get(part, (0, 0)), (key.rows, key.consumed)])
    return found


def whole(reports: Reports) -> Reports:
    """Add reports of spans up to reports of whole turns."""
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
        found[of._replace(rows=rows, consumed=consumed, emitted=emitted, produced=produced)] = NONE
    return found


def _find_missing(wiring: Wiring, reports: Reports, totals: Mapping[Part, Total]) -> list[tuple[str, Part]]:
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


def failures(wiring: Wiring, reports: Reports, turns: Mapping[int, Total]) -> dict[int, Failed]:
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
        alone = turns[key.shard] == (key.rows, key.consumed)
        of_source = tuple(wiring[key.operator]) == (SOURCE,)
        if alone or not of_source or read[key.operator, key.shard, key.stage] <= turns[key.shard][0]:
            found.setdefault(key.shard, []).append(failed)
    return {shard: NONE.union(*several) for shard, several in found.items()}


def _runs(reports: Reports) -> Mapping[tuple[str, Part], set[tuple[Total, Total]]]:
    """Return the possible totals of complete runs, by operator and part: sums of one stage, and of all."""
    stages: dict[tuple[str, int], dict[int, dict[int, set[_Content]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(set))
    )
    for key in reports:
        content = key.span, ((key.rows, key.consumed), (key.emitted, key.produced))
        stages[key.operator, key.shard][key.stage][key.partition].add(content)
    found: dict[tuple[str, Part], set[tuple[Total, Total]]] = defaultdict(set)
    for (operator, shard), by_stage in stages.items():
        sums: dict[int, list[tuple[Total, Total]]] = defaultdict(list)
        for by_task in by_stage.values():
            for span, pairs in _pairs_of(by_task.values()).items():
                sums[span].append(_sum_pairs(pairs))
        for span, of_stages in sums.items():
            found[operator, (shard, span)] = {*of_stages, _sum_pairs(of_stages)}
    return found


def _pairs_of(tasks: Iterable[set[_Content]]) -> Mapping[int, list[tuple[Total, Total]]]:
    """Return the totals that count of a stage's tasks, by span."""
    times = Counter(map(frozenset, tasks))
    # A union of the user's may have computed the same tasks several times.
    counted = times if len(set(times.values())) == 1 else times.elements()
    pairs: dict[int, list[tuple[Total, Total]]] = defaultdict(list)
    for span, pair in chain.from_iterable(counted):
        pairs[span].append(pair)
    return pairs


def _sum_pairs(pairs: Sequence[tuple[Total, Total]]) -> tuple[Total, Total]:
    return _sum(taken for taken, _ in pairs), _sum(made for _, made in pairs)


def _sum(parts: Iterable[Total]) -> Total:
    count = value = 0
    for more, xor in parts:
        count += more
        value ^= xor
    return count, value
