"""Decoders of a record's `data` for `reliable(...).map`: one record becomes a row, several, or none."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from kinesis_trident.bolt.decoders.aws import Row, change_of_dynamodb, changes_of_dms, log_events
from kinesis_trident.bolt.decoders.documents import objects_of
from kinesis_trident.bolt.errors import FailedException, OperatorError
from kinesis_trident.bolt.steps.columns import Record
from kinesis_trident.bolt.steps.functions import RowStep, refuse_stray
from kinesis_trident.bolt.steps.json_values import differs, from_json
from kinesis_trident.spout.options.connection import ConnectionOptions

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDecoder(ABC):
    """Decodes records of JSON objects into rows; `rows` says which an object becomes.

    Args:
        defaults: values of columns for rows without a value of that name, such as `{"level": None}`.
        keep: columns of the source, such as `["partitionKey"]`.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    keep: Sequence[str] = ()

    def make_step(self, schema: pa.Schema, _connection: ConnectionOptions) -> RowStep:
        """Return the step that makes columns of this schema.

        Raises:
            OperatorError: a name in `defaults` or `keep` is no column of the schema.
        """
        refuse_stray(self, (*self.defaults, *self.keep), schema)
        return RowStep(_Decoding(self, schema, any(map(differs, schema.types))), schema)

    @abstractmethod
    def rows(self, document: Row) -> Iterable[Row]:
        """Return the rows of an object.

        Raises:
            ValueError: it is not what such records hold.
        """

    def ticks(self, name: str, row: Row) -> int | None:
        """Return how many units of a row's numeric time of this name make a second; None if it has no unit."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder(ObjectDecoder):
    """Decodes records of JSON objects: one, or several one after another or in an array, each of which becomes a row.

        reliable(logs).map(JsonDecoder(defaults={"level": None}), "level string, message string")

    The columns are the members of those names. A record may be compressed by gzip or zlib, which its first bytes show:
    so are those of fluent-bit. Its records, and Firehose's, may hold several objects without anything between. A record
    fails, with the reason, if one of its objects has no member of a column's name or a value does not fit.

    Args:
        defaults: values of columns for objects without a member of that name, such as `{"level": None}`.
        keep: columns of the source, such as `["partitionKey"]`.
    """

    def rows(self, document: Row) -> Iterable[Row]:
        """Return the object."""
        return (document,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudWatchLogsDecoder(ObjectDecoder):
    """Decodes what a subscription of CloudWatch Logs writes: a row for each log event, for a control message none.

        reliable(logs).map(CloudWatchLogsDecoder(), "timestamp timestamp, logGroup string, message string")

    The columns are `id`, `timestamp` and `message` of an event, and `owner`, `logGroup`, `logStream` and
    `subscriptionFilters` of its record; each is read as the type that the column has.

    Args:
        defaults: values of columns for events without such a member, such as `{"extractedFields": None}`.
        keep: columns of the source, such as `["partitionKey"]`.
    """

    def rows(self, document: Row) -> Iterable[Row]:
        """Return the log events of a record's object."""
        return log_events(document)

    def ticks(self, name: str, row: Row) -> int | None:
        """Return the unit of an event's time."""
        return 1000 if name == "timestamp" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDecoder(ObjectDecoder):
    """Decodes changes of the rows of a table.

    Args:
        deleted: the name of a boolean column that is true in deletions and false in other changes.
        defaults: values of columns for changes without such a member.
        keep: columns of the source, such as `["partitionKey"]`.
    """

    deleted: str | None = None

    def make_step(self, schema: pa.Schema, connection: ConnectionOptions) -> RowStep:
        """Return the step that makes columns of this schema.

        Raises:
            OperatorError: `deleted` is no boolean column of the schema, or a name in `defaults` or `keep` is none.
        """
        if self.deleted is not None and (
            self.deleted not in schema.names or not pa.types.is_boolean(schema.field(self.deleted).type)
        ):
            msg = (
                f"{type(self).__name__} names {self.deleted!r} in deleted, which is no boolean column of the schema. "
                f"Add {self.deleted} boolean to it"
            )
            raise OperatorError(msg)
        return ObjectDecoder.make_step(self, schema, connection)

    def tell(self, change: Row, *, is_deletion: bool) -> Row:
        """Return a change with the column that tells deletions."""
        return change if self.deleted is None else {**change, self.deleted: is_deletion}


@dataclass(frozen=True, slots=True, kw_only=True)
class DmsDecoder(ChangeDecoder):
    """Decodes the changes that AWS DMS writes: a row for each, for control records none.

        reliable(changes).map(DmsDecoder(table="shop.orders"),
            "order_id long, amount decimal(10,2), metadata struct<operation string, timestamp string>")

    The columns are those of the table, and `metadata`, of which a struct takes the members that it names.

    Args:
        table: the schema and table of which changes become rows; those of others are done without one.
        deleted: the name of a boolean column that is true in deletions, for `merge_into(..., deleted=...)`.
        defaults: values of columns for changes without such a member.
        keep: columns of the source, such as `["partitionKey"]`.
    """

    table: str | None = None

    def rows(self, document: Row) -> Iterable[Row]:
        """Return the change of a record's object."""
        for change in changes_of_dms(document, self.table):
            yield self.tell(change, is_deletion=change["metadata"].get("operation") == "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoDBDecoder(ChangeDecoder):
    """Decodes the changes of a DynamoDB table that is streamed to Kinesis.

        reliable(changes).map(DynamoDBDecoder(), "eventName string, ApproximateCreationDateTime timestamp, "
            "Keys struct<order_id string>, NewImage struct<amount decimal(38,10), tags array<string>>")

    The columns are the members of the record and of its `dynamodb`. In `Keys`, `NewImage` and `OldImage` attributes are
    plain values: texts, numbers with all their digits, bytes, lists, maps. An image that a change does not have is
    null, as is an attribute that an item does not have.

    Args:
        deleted: the name of a boolean column that is true in deletions, for `merge_into(..., deleted=...)`.
        defaults: values of columns for changes without such a member.
        keep: columns of the source, such as `["partitionKey"]`.
    """

    def rows(self, document: Row) -> Iterable[Row]:
        """Return the change of a record's object."""
        change = change_of_dynamodb(document)
        return (self.tell(change, is_deletion=change.get("eventName") == "REMOVE"),)

    def ticks(self, name: str, row: Row) -> int | None:
        """Return the unit of the change's time."""
        if name != "ApproximateCreationDateTime":
            return None
        return 1_000_000 if row.get(f"{name}Precision") == "MICROSECOND" else 1000


@dataclass(frozen=True, slots=True)
class _Decoding:
    """A decoder as a function of records; `exact`: JSON has values of some columns otherwise."""

    decoder: ObjectDecoder
    schema: pa.Schema
    exact: bool

    def __call__(self, record: Record) -> list[tuple[Any, ...]]:
        try:
            objects = objects_of(record.data, exact=self.exact)
            rows = chain.from_iterable(map(self.decoder.rows, objects))
            return [tuple(self._value(column, row, record) for column in self.schema) for row in rows]
        except ValueError as error:
            msg = f"{type(self.decoder).__name__}: {error}"
            raise FailedException(msg) from error

    def _value(self, column: pa.Field, row: Row, record: Record) -> Any:
        name, decoder = column.name, self.decoder
        if name in decoder.keep:
            return record[name]
        if name not in row:
            if name in decoder.defaults:
                return decoder.defaults[name]
            msg = (
                f"it has no {name!r}, only {', '.join(sorted(row)):.200}. Give the column a value in defaults, or "
                "correct its name"
            )
            raise ValueError(msg)
        value = row[name]
        if pa.types.is_timestamp(column.type) and isinstance(value, int):
            return _time_of(value, name, decoder.ticks(name, row))
        return from_json(value, column.type) if self.exact else value


def _time_of(value: int, name: str, ticks: int | None) -> datetime.datetime:
    if ticks is None:
        msg = (
            f"{name!r} is the number {value}, whose unit nobody says. Give the column the type bigint, and say it in "
            f"the next step, such as timestamp_millis({name})"
        )
        raise ValueError(msg)
    try:
        return _EPOCH + datetime.timedelta(microseconds=value * (1_000_000 // ticks))
    except OverflowError:
        msg = f"{name!r} is the time {value}, which no calendar has"
        raise ValueError(msg) from None
