"""Decides which rows of a batch fit into a table, in columns: the others fail alone, by their `messageId`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.steps.poison import ColumnCheck, Mask
from kinesis_trident.common.arrow_columns import booleans, find_invalid_texts, values_of
from kinesis_trident.spout.reader.rows import MESSAGE_ID

UNFIT = [StructField(name, ArrayType(StringType())) for name in ("ids", "reasons")]
"""The columns in which a task gives the rows that do not fit."""


@dataclass(frozen=True)
class Unfit:
    """Rows that a table does not take.

    Attributes:
        reasons: by the `messageId` of a row.
        nameless: the reason of a row that has none, of which one is enough: the batch is refused with it.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    nameless: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasons or self.nameless)

    def add(self, ids: Iterable[str | None], reasons: Iterable[str]) -> None:
        """Add rows; the first reason of a record counts."""
        for name, reason in zip(ids, reasons, strict=True):
            if name is not None:
                self.reasons.setdefault(name, reason)
            elif not self.nameless:
                self.nameless.append(reason)

    def add_places(self, ids: pa.Array, reasons: Mapping[int, str]) -> None:
        """Add rows by their places; `ids` has the `messageId` of each row."""
        places = pa.array(list(reasons), pa.int64())
        self.add(ids.take(places).to_pylist(), reasons.values())

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as the columns `UNFIT` of one row."""
        return {
            "ids": [*self.reasons, *(None for _ in self.nameless)],
            "reasons": [*self.reasons.values(), *self.nameless],
        }

    def refuse_nameless(self, schema: StructType, where: str) -> None:
        """Refuse the batch if a row that does not fit cannot be told from others: call it before anything is written.

        Raises:
            SinkError: it says the row's reason, and what the rows need.
        """
        if not self.nameless:
            return
        what_to_do = (
            f"Its {MESSAGE_ID} is null, as outer joins make them, so it cannot fail alone: filter such rows out"
            if has_ids(schema)
            else f"Keep the column {MESSAGE_ID!r} in the rows: then such records fail alone. It need not be in the "
            "table"
        )
        msg = f"a row does not fit into {where}: {self.nameless[0]}. {what_to_do}"
        raise SinkError(msg)


def has_ids(schema: StructType) -> bool:
    """Return whether the rows of a schema can fail alone."""
    return MESSAGE_ID in schema.names and isinstance(schema[MESSAGE_ID].dataType, StringType)


@dataclass(frozen=True)
class Fitting:
    """The rows that a table takes.

    Attributes:
        required: columns that must not be null.
        checks: of the columns that are written.
        has_ids: the rows have a `messageId`.
        spared: of required columns those that may be null where another one, a boolean, is true; by its name.
    """

    required: Sequence[str]
    checks: Sequence[ColumnCheck]
    has_ids: bool
    spared: Mapping[str, str] = field(default_factory=dict)

    def fit(self, batch: pa.RecordBatch, unfit: Unfit) -> pa.RecordBatch:
        """Return the rows of a batch that fit; the others are added to `unfit`, with all rows of their records."""
        found = [*self._find(batch)]
        if not found:
            return batch
        places: dict[int, str] = {}
        for reason, wrong in found:
            for place in np.flatnonzero(wrong).tolist():
                places.setdefault(place, reason)
        ids = self.ids_of(batch)
        unfit.add_places(ids, places)
        fits = np.ones(batch.num_rows, np.bool_)
        fits[list(places)] = False
        # Of a record with several rows none is written here: all of them come again.
        again = pc.is_in(ids, value_set=ids.filter(booleans(~fits)).drop_null())
        return batch.filter(booleans(fits & ~values_of(again)))

    def _find(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Mask]]:
        for name in self.required:
            if not batch[name].null_count:
                continue
            wrong = batch[name].is_null()
            if name in self.spared:
                wrong = pc.and_not(wrong, batch[self.spared[name]].fill_null(False))
            yield f"column {name!r} is null", values_of(wrong)
        for check in self.checks:
            wrong = check(batch[check.column])
            if wrong is not None:
                yield f"column {check.name!r} is {check.poison.words}", wrong

    def ids_of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the `messageId` of each row of a batch; null where it names no record."""
        if not self.has_ids:
            return pa.nulls(batch.num_rows, pa.string())
        ids = batch[MESSAGE_ID]
        wrong = find_invalid_texts(ids)
        return ids if wrong is None else pc.if_else(booleans(wrong), pa.scalar(None, ids.type), ids)
