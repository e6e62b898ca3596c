"""Drawn types, values of them, and values that stray: of what goes through users' functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st
from pyspark.sql import types as T

from kinesis_trident.bolt.steps.schemas import parse_type

UTC = timezone.utc  # noqa: UP017

PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=4),
    "binary": st.binary(max_size=4),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "decimal(10,2)": st.decimals(-(10**7), 10**7, places=2),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
}

Drawn = tuple[T.DataType, st.SearchStrategy[Any]]


def _array(of: Drawn) -> Drawn:
    return T.ArrayType(of[0]), st.lists(st.none() | of[1], max_size=3)


def _map(of: Drawn) -> Drawn:
    return T.MapType(T.StringType(), of[0]), st.dictionaries(PLAIN["string"], st.none() | of[1], max_size=3)


def _struct(of: Sequence[Drawn]) -> Drawn:
    fields = [T.StructField(f"f{number}", kind) for number, (kind, _) in enumerate(of)]
    values = {f"f{number}": st.none() | content for number, (_, content) in enumerate(of)}
    return T.StructType(fields), st.fixed_dictionaries(values)


TYPES = st.recursive(
    st.sampled_from([(parse_type(name), values) for name, values in PLAIN.items()]),
    lambda inner: inner.map(_array) | inner.map(_map) | st.lists(inner, min_size=1, max_size=2).map(_struct),
    max_leaves=3,
)
STRAY = st.sampled_from(
    [True, 3, 3.5, 1e300, math.inf, "abc", b"\xff", Decimal("1.005"), date(2026, 1, 1), 1782900000000, [1, 2.5],
     {"a": 1}, {"f0": 2.5}, (1, 2), {1}, np.array([1.5]), range(2)]
)  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    """Return whether what was given is what came back, at any depth."""
    if isinstance(one, bytes) != isinstance(other, bytes) and isinstance(one, str | bytes):
        return equal(*(value.encode() if isinstance(value, str) else value for value in (one, other)))
    if isinstance(other, dict):
        given = one if isinstance(one, dict) else dict(zip(other, one, strict=True))
        return all(equal(given[key], value) for key, value in other.items())
    if isinstance(other, list):
        return len(one) == len(other) and all(map(equal, sorted(one) if isinstance(one, set) else one, other))
    if isinstance(one, datetime) and isinstance(other, datetime):
        return one.replace(tzinfo=one.tzinfo or UTC) == other.replace(tzinfo=other.tzinfo or UTC)
    return bool(one == other)
