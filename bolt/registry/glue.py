"""Decodes the records of a stream by their schemas in AWS Glue Schema Registry, as a step of `reliable(...).map`.

Each schema is asked for once a process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from kinesis_trident.bolt.errors import FailedException, OperatorError, SchemaRegistryError
from kinesis_trident.bolt.registry.avro_columns import Field, read_columns
from kinesis_trident.bolt.registry.formats import (
    Decoder,
    avro_decoder,
    json_decoder,
    protobuf_decoder,
)
from kinesis_trident.bolt.registry.framing import HEADER_BYTES, Frames, frames_of, name_of, split_frame
from kinesis_trident.bolt.steps.border import fitting
from kinesis_trident.bolt.steps.columns import Record
from kinesis_trident.bolt.steps.functions import Judged, RowStep, join_parts, refuse_stray
from kinesis_trident.bolt.steps.json_values import differs, from_json
from kinesis_trident.common.arrow_columns import column_of, numbers
from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.kinesis.aws_session import create_client
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.tracker.failure import Failure, Kind

_ASK_AGAIN_SECONDS = 60.0
"""How long a schema that the registry does not know is not asked for again."""

_MOST_UNKNOWN = 100
"""Unknown schemas that are asked for within that time: a producer of random ids costs no more calls."""

_UNKNOWN = {"EntityNotFoundException", "InvalidInputException"}
_DENIED = "AccessDeniedException"
_NO_SCHEMA = bytes(16)
"""An id that no schema version has: whoever may ask for schemas is told so."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a schema.

    Args:
        name: its schema's ARN and its id, for messages.
        decoder: of one record.
        plan: to read many records at a time; None if only the decoder can.
        exact: as the decoder, with decimals for numbers with a point; None for what is no JSON.
    """

    name: str
    decoder: Decoder
    plan: Mapping[str, Field] | None = None
    exact: Decoder | None = None

    def decode(self, payload: bytes, columns: pa.Schema | None) -> Mapping[str, Any]:
        """Return the fields of a record; `columns`: those of the rows, if JSON has values of some otherwise.

        Raises:
            FailedException: it does not fit the schema.
        """
        try:
            if columns is None or self.exact is None:
                return self.decoder(payload)
            found = dict(self.exact(payload))
            return found | {
                one.name: from_json(found[one.name], one.type) for one in columns if one.name in found
            }
        except Exception as error:
            msg = f"the record does not fit its schema {self.name}: {type(error).__name__}: {error}"
            raise FailedException(msg) from error


class SchemaRegistry:
    """Looks up schema versions by their ids, and keeps them: a version never changes."""

    def __init__(self, client: Any, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[bytes, RegisteredSchema | Failure] = {}
        self._unknown: dict[bytes, tuple[float, Failure]] = {}
        self._let_in_at = -math.inf

    def find(self, schemas: Sequence[bytes]) -> Schemas:
        """Return schema versions, or the failure of the records of each that is unknown or cannot be used.

        They are asked for in this order, until too many are unknown: the records of the others are held.

        Raises:
            SchemaRegistryError: the registry does not answer or refuses the credentials, or a package is missing.
        """
        now = self._clock()
        self._unknown = {
            one: told for one, told in self._unknown.items() if now - told[0] < _ASK_AGAIN_SECONDS
        }
        denied: dict[bytes, ClientError] = {}
        for schema in schemas:
            is_told = schema in self._known or schema in self._unknown
            if is_told or len(self._unknown) + len(denied) >= _MOST_UNKNOWN:
                continue
            try:
                found = self._ask(schema)
            except ClientError as error:
                denied[schema] = error
                continue
            if found is None:
                self._unknown[schema] = (
                    now,
                    Failure.said(
                        f"the schema version {name_of(schema)} is not in the registry, or not available. Register "
                        "it, or check the region and the account"
                    ),
                )
            else:
                self._known[schema] = found
        if denied:
            self._check_permission(*next(iter(denied.items())))
        for schema in denied:
            self._unknown[schema] = (
                now,
                Failure.said(
                    f"AWS Glue does not let these credentials read the schema version {name_of(schema)}. Allow "
                    "glue:GetSchemaVersion for its schema, or check what writes it"
                ),
            )
        return {one: self._told(one) for one in schemas}

    def _told(self, schema: bytes) -> RegisteredSchema | Failure:
        if schema in self._known:
            return self._known[schema]
        if schema in self._unknown:
            return self._unknown[schema][1]
        reason = (
            f"the schema version {name_of(schema)} is not looked up yet: {_MOST_UNKNOWN} others within "
            f"{_ASK_AGAIN_SECONDS:.0f} s are not in the registry. Check what writes them"
        )
        return Failure(Kind.HELD, reason)

    def _check_permission(self, schema: bytes, error: ClientError) -> None:
        """Check that it is only these schemas that the credentials may not read.

        Raises:
            SchemaRegistryError: they may read none.
        """
        if self._clock() - self._let_in_at < _ASK_AGAIN_SECONDS:
            return
        # A permission may be for some schemas alone, and may end.
        try:
            self._ask(next(iter(self._known), _NO_SCHEMA))
        except ClientError:
            raise _unavailable(schema, error) from error

    def _ask(self, schema: bytes) -> RegisteredSchema | Failure | None:
        """Return a schema version, the failure if it cannot be used, or None if it is unknown.

        Raises:
            ClientError: the credentials may not read it.
            SchemaRegistryError: the registry does not answer, or a package is missing.
        """
        try:
            answer = self._client.get_schema_version(SchemaVersionId=name_of(schema))
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            if code == _DENIED:
                raise
            if code not in _UNKNOWN:
                raise _unavailable(schema, error) from error
            answer = {}
        except BotoCoreError as error:
            raise _unavailable(schema, error) from error
        self._let_in_at = self._clock()
        if answer.get("Status", "AVAILABLE") != "AVAILABLE" or "SchemaDefinition" not in answer:
            return None
        name = f"{answer.get('SchemaArn', 'of unknown name')} (version {name_of(schema)})"
        try:
            return _schema_of(name, answer["DataFormat"], answer["SchemaDefinition"])
        except SchemaRegistryError:
            raise
        except Exception as error:
            return Failure.said(f"the schema {name} cannot be used: {type(error).__name__}: {error}")


def _schema_of(name: str, data_format: str, definition: str) -> RegisteredSchema:
    match data_format:
        case "AVRO":
            return RegisteredSchema(name, *avro_decoder(definition))
        case "JSON":
            return RegisteredSchema(
                name, json_decoder(definition), exact=json_decoder(definition, float_hook=Decimal)
            )
        case "PROTOBUF":
            return RegisteredSchema(name, protobuf_decoder(definition))
    msg = f"its format is {data_format}; expected AVRO, JSON or PROTOBUF"
    raise ValueError(msg)


def _unavailable(schema: bytes, error: Exception) -> SchemaRegistryError:
    return SchemaRegistryError(
        f"AWS Glue Schema Registry did not return the schema version {name_of(schema)}: {error}. Allow "
        "glue:GetSchemaVersion to the executors, and check region, endpoint and quotas; the records are not failed"
    )


_REGISTRIES: PerProcess[tuple[ConnectionOptions, str | None, str | None], SchemaRegistry] = PerProcess()

Schemas = Mapping[bytes, RegisteredSchema | Failure]


@dataclass(frozen=True, slots=True)
class GlueDecoder:
    """Decodes records that AWS's serializers wrote with a schema of AWS Glue Schema Registry: Avro, JSON or Protobuf.

        reliable(orders).map(GlueDecoder(), "order_id string, amount double").for_each_batch(write)

    The columns are the fields of those names. Each record is decoded by the schema that its header names, which a
    process asks the registry for once. A record fails, with the reason, if it has no header, its schema is unknown or
    has no field of a column's name, it does not fit its schema, or a value does not fit its column. If the registry
    does not answer, no record fails: the batch is tried again, then the query stops.

    Args:
        region: of the registry; by default the stream's.
        endpoint_url: of AWS Glue; by default the region's.
        defaults: values of columns for records whose schema has no field of that name, such as
            `{"discount": None}`.
        keep: columns of the source that are in the schema too, such as `["approximateArrivalTimestamp"]`.

    The credentials are those of the stream, with the permission glue:GetSchemaVersion. Install the extra `glue` on the
    executors.
    """

    region: str | None = None
    endpoint_url: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keep: Sequence[str] = ()

    def make_step(self, schema: pa.Schema, connection: ConnectionOptions) -> GlueStep:
        """Return the step that makes columns of this schema.

        Raises:
            OperatorError: a name in `defaults` or `keep` is no column of the schema.
        """
        refuse_stray(self, (*self.defaults, *self.keep), schema)
        return GlueStep(self, schema, connection)


@dataclass(frozen=True, slots=True)
class GlueStep:
    """A `GlueDecoder` as a step."""

    decoder: GlueDecoder
    schema: pa.Schema
    connection: ConnectionOptions

    def __call__(self, batch: pa.RecordBatch) -> Judged:
        """Decode a batch.

        Raises:
            OperatorError: it is not the source's.
            SchemaRegistryError: the registry does not answer.
        """
        return join_parts(self.parts(batch))

    def parts(self, batch: pa.RecordBatch) -> Iterator[Judged]:
        """Yield the same in parts: records that have been compressed can become large."""
        if "data" not in batch.schema.names:
            columns = ", ".join(batch.schema.names)
            msg = f"GlueDecoder needs the column 'data', but gets {columns}. Make it the first map"
            raise OperatorError(msg)
        frames = frames_of(batch.column("data"))
        registry = self._registry()
        schemas = registry.find(frames.by_frequency())
        bulk, rows = self._in_bulk(batch, frames, schemas)
        unusable = {
            number: found
            for number, name in enumerate(frames.schemas)
            if isinstance(found := schemas[name], Failure)
        }
        without = np.flatnonzero(np.isin(frames.ids, list(unusable)))
        rest = np.setdiff1d(np.arange(batch.num_rows), np.concatenate([rows, without]), assume_unique=True)
        undecoded = {int(row): unusable[int(frames.ids[row])] for row in without}
        if not len(rest):
            yield Judged(bulk, rows, undecoded)
            return
        of_json = self.schema if any(differs(one.type) for one in self.schema) else None
        one_by_one = RowStep(_OneRecord(self, schemas, of_json), self.schema)
        start = 0
        for part in one_by_one.parts(batch.take(numbers(rest))):
            end = None if part.end is None else int(rest[part.end - 1]) + 1
            first, last = np.searchsorted(rows, [start, batch.num_rows if end is None else end])
            source = np.concatenate([rows[first:last], rest[part.source]])
            order = np.argsort(source, kind="stable")
            found = pa.concat_batches([bulk.slice(first, last - first), part.rows]).take(numbers(order))
            failed = {int(rest[row]): failure for row, failure in part.failed.items()}
            first, last = np.searchsorted(without, [start, batch.num_rows if end is None else end])
            failed |= {int(row): undecoded[int(row)] for row in without[first:last]}
            yield Judged(found, source[order], failed, end)
            start = batch.num_rows if end is None else end

    def missing_value(self, name: str, schema: RegisteredSchema) -> Any:
        """Return the value of a column for records whose schema has no such field.

        Raises:
            FailedException: it has no default.
        """
        if name not in self.decoder.defaults:
            msg = (
                f"the schema {schema.name} has no field {name!r}. Give the column a value in "
                "GlueDecoder(defaults=...), or correct its name"
            )
            raise FailedException(msg)
        return self.decoder.defaults[name]

    def _registry(self) -> SchemaRegistry:
        key = (self.connection, self.decoder.region, self.decoder.endpoint_url)
        try:
            return _REGISTRIES.get(
                key,
                lambda: SchemaRegistry(
                    create_client("glue", key[0], region=key[1], endpoint_url=key[2]), time.monotonic
                ),
            )
        except BotoCoreError as error:
            msg = (
                f"AWS Glue cannot be asked for schemas: {error}. Give the executors credentials and a region"
            )
            raise SchemaRegistryError(msg) from error

    def _in_bulk(
        self, batch: pa.RecordBatch, frames: Frames, schemas: Schemas
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the records that are read column by column, and their rows, ascending."""
        found = []
        for number, name in enumerate(frames.schemas):
            schema = schemas[name]
            rows = np.flatnonzero((frames.ids == number) & frames.plain)
            if isinstance(schema, RegisteredSchema) and schema.plan is not None and len(rows):
                read = self._read(batch, frames, schema, rows)
                if read is not None:
                    found.append(read)
        if not found:
            return pa.RecordBatch.from_arrays(
                [pa.nulls(0, one.type) for one in self.schema], schema=self.schema
            ), np.empty(0, np.int64)
        if len(found) == 1:
            return found[0]
        source = np.concatenate([rows for _, rows in found])
        order = np.argsort(source)
        return pa.concat_batches([one for one, _ in found]).take(numbers(order)), source[order]

    def _read(
        self, batch: pa.RecordBatch, frames: Frames, schema: RegisteredSchema, rows: np.ndarray
    ) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """Return the records of one schema that are read at once; None if a column has to be decoded one by one."""
        assert schema.plan is not None
        wanted = [one for one in self.schema if one.name in schema.plan and one.name not in self.decoder.keep]
        read = read_columns(
            frames.content,
            frames.starts[rows] + HEADER_BYTES,
            frames.ends[rows],
            schema.plan,
            pa.schema(wanted),
        )
        if read is None:
            return None
        columns, good = read
        rows = rows[good]
        of_fields = dict(zip([one.name for one in wanted], columns, strict=True))
        try:
            found = [self._column(batch, one, schema, of_fields, rows) for one in self.schema]
        except Exception:
            # One by one the record fails whose value it is.
            return None
        made, _, unfit = fitting(found, len(rows), self.schema)
        return None if unfit else (made, rows)

    def _column(
        self,
        batch: pa.RecordBatch,
        column: pa.Field,
        schema: RegisteredSchema,
        of_fields: Mapping[str, pa.Array],
        rows: np.ndarray,
    ) -> pa.Array:
        if column.name in self.decoder.keep:
            return batch.column(column.name).take(numbers(rows)).cast(column.type)
        found = of_fields.get(column.name)
        if found is None:
            found = column_of([self.missing_value(column.name, schema)] * len(rows), column.type)
        return found


@dataclass(frozen=True, slots=True)
class _OneRecord:
    """Decodes one record, by schemas that have been looked up."""

    step: GlueStep
    schemas: Schemas
    columns: pa.Schema | None

    def __call__(self, record: Record) -> tuple[Any, ...]:
        name, payload = split_frame(record.data)
        schema = self.schemas[name]
        assert isinstance(schema, RegisteredSchema)
        fields = schema.decode(payload, self.columns)
        keep = self.step.decoder.keep
        return tuple(
            record[column]
            if column in keep
            else fields[column]
            if column in fields
            else self.step.missing_value(column, schema)
            for column in self.step.schema.names
        )
