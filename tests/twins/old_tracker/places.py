"""Positions in two forms: as texts where they compare as such, else parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from kinesis_trident.tracker.records import RecordPosition

T = TypeVar("T")

Place: TypeAlias = Any

Places = Callable[[Sequence[str]], list[Place]]


PARSED: Places = RecordPosition.parse_all


def are_comparable(texts: Sequence[str]) -> bool:
    if not texts:
        return True
    return bool(texts[0]) and len(set(map(len, texts))) == 1 and ":" not in "".join(texts)


def sort_in_shard_order(items: Sequence[T], last_of: Callable[[T], str] = attrgetter("last")) -> list[T]:
    lasts = list(map(last_of, items))
    ends: Sequence[Any] = lasts if are_comparable(lasts) else RecordPosition.parse_all(lasts)
    return [items[index] for index in sorted(range(len(ends)), key=ends.__getitem__)]
