"""Carries no column further than it is read: a record's payload is not copied for each word that came from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from trident.emitting import ArrowStep, FunctionStep, QueryStep
from trident.steps import FilterStep, FiniteStep, ProjectStep, TridentStep

__all__ = ["narrowed"]


def narrowed(
    steps: Sequence[TridentStep], wanted: Iterable[str]
) -> tuple[tuple[TridentStep, ...], list[str]]:
    """The same steps, keeping only what later ones read.

    Args:
        steps: one after the other.
        wanted: the columns that are read of the last one's output; at least one.

    Returns:
        The steps, and the columns that the first one reads.
    """
    needed = set(wanted)
    kept: list[TridentStep] = []
    for step in reversed(steps):
        one, needed = _narrowed(step, needed)
        kept.append(one)
    return tuple(reversed(kept)), sorted(needed)


def _narrowed(step: TridentStep, wanted: set[str]) -> tuple[TridentStep, set[str]]:
    if isinstance(step, FunctionStep | ArrowStep | QueryStep):
        through = _only(step.kept, wanted)
        return replace(step, kept=through), {*step.inputs, *through.names}
    if isinstance(step, FilterStep | FiniteStep):
        through = _only(step.schema, wanted)
        return replace(step, schema=through), {*step.inputs, *through.names}
    if isinstance(step, ProjectStep):
        through = _only(step.schema, wanted)
        return replace(step, schema=through), set(through.names)
    return step, set(step.schema.names)


def _only(schema: pa.Schema, wanted: set[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in wanted])
