"""Writes a number with its noun, for every text that people read. Pure."""

from __future__ import annotations


def count_noun(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: `1 record`, `1,204 records`; `several` where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
