"""Reads damaged sketches as states do; for a process of its own, which the library may end."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datasketches import hll_sketch, hll_union, kll_doubles_sketch, tgt_hll_type
from exploring import mutant

from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.errors import ForeignValueError
from kinesis_trident.trident.operations import Function
from kinesis_trident.trident.sketches import (
    ApproxDistinct,
    ApproxQuantiles,
    DistinctEstimate,
    QuantileEstimates,
)
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

__all__ = ["SAMPLES", "read_damaged", "read_everything"]

_TYPES = tgt_hll_type.HLL_4, tgt_hll_type.HLL_6, tgt_hll_type.HLL_8


def _hll(lg_k: int, kind: tgt_hll_type, values: Iterable[int], *, registers: bool = False) -> Any:
    sketch = hll_sketch(lg_k, kind, registers)
    for value in values:
        sketch.update(value)
    return sketch


def _kll(k: int, count: int) -> kll_doubles_sketch:
    sketch = kll_doubles_sketch(k)
    for value in range(count):
        sketch.update(value / 7)
    return sketch


def _united(*sketches: Any) -> Any:
    union = hll_union(12)
    for sketch in sketches:
        union.update(sketch)
    return union.get_result(tgt_hll_type.HLL_8)


_FAR = [24_321, 156_037, 157_230, 232_582, 366_386]
"""Values with which five registers of sixteen are 16 to 19, so that `HLL_4` keeps them in a table."""


def _samples() -> list[bytes]:
    # Empty, lists, sets, registers, the table of HLL_4.
    small = ((4, 0), (12, 5), (9, 30), (4, 40), (9, 700))
    distinct = [
        *(_hll(lg_k, kind, range(n)) for kind in _TYPES for lg_k, n in small),
        *(_hll(4, kind, values, registers=True) for kind in _TYPES for values in (_FAR[:1], _FAR)),
        _hll(4, tgt_hll_type.HLL_4, range(90_000)),
        _united(_hll(12, tgt_hll_type.HLL_8, range(3_000)), _hll(4, tgt_hll_type.HLL_8, range(900))),
    ]
    quantiles = [_kll(k, n) for k, n in ((8, 0), (200, 1), (8, 2), (200, 150), (8, 900), (21, 9_000))]
    found = [bytes(one.serialize_compact()) for one in distinct]
    found += [bytes(one.serialize_updatable()) for one in distinct]
    return found + [bytes(one.serialize()) for one in quantiles]


SAMPLES = _samples()
"""The bytes of sketches of each form that the library writes."""

_ROWS: list[tuple[CombinerAggregator, Function, list[str]]] = [
    (
        ApproxDistinct(),
        DistinctEstimate(),
        [
            b64encode(_hll(lg_k, tgt_hll_type.HLL_8, range(n)).serialize_compact()).decode()
            for lg_k, n in ((12, 3), (12, 30), (12, 2_000), (4, 50))
        ],
    ),
    (
        ApproxQuantiles(),
        QuantileEstimates(0, 0.5, 1),
        [b64encode(_kll(k, count).serialize()).decode() for k, count in ((200, 1), (200, 900), (8, 70))],
    ),
]


def read_everything(data: bytes) -> int:
    """Read bytes as a sketch of each kind, and use it; return the number of kinds that it is.

    Raises:
        Exception: a sketch was not refused, but cannot be used.
    """
    text = b64encode(data).decode()
    return sum(_is_used(*row, text) for row in _ROWS)


def _is_used(aggregator: CombinerAggregator, estimate: Function, others: list[str], text: str) -> bool:
    columns = 3 if isinstance(estimate, QuantileEstimates) else 1
    try:
        estimate.execute(TridentTuple(("sketch",), (text,)), TridentCollector("estimate", columns))
        for other in others:
            aggregator.combine(text, other)
            aggregator.combine(other, text)
        aggregator.combine(aggregator.combine(text, text), others[0])
    except ForeignValueError:
        return False
    return True


def read_damaged(count: int, seed: int, last: Path) -> None:
    """Read damaged sketches, each alone in a file while it is read: the process may end."""
    rng = random.Random(seed)
    for number in range(count):
        data = mutant(rng, SAMPLES) if number % 2 else _damaged_head(rng)
        last.write_bytes(data)
        read_everything(data)


def _damaged_head(rng: random.Random) -> bytes:
    """Return a sample with other counts, which stand at the beginning, and sometimes another end."""
    data = bytearray(rng.choice(SAMPLES))
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(min(len(data), 60))] = rng.choice((*range(24), 63, 64, 127, 128, 200, 255))
    end = rng.choice((len(data), len(data), rng.randint(1, len(data))))
    return bytes(data[:end]) + rng.randbytes(rng.choice((0, 0, 0, 8, 70)))
