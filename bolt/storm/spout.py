"""The spouts of a topology: the source, and any other DataFrame."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import accumulate

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.names import check_fields, quoted
from kinesis_trident.bolt.steps.schemas import parse_type
from kinesis_trident.spout.reader.rows import MESSAGE_ID, SCHEMA
from kinesis_trident.spout.spark_plan import check_names

Settle = Callable[[DataFrame, DataFrame, int], None]
"""Gets the ids of the rows that are done, those of failed ones with a column `reason`, and the batch's txid."""

_CAST = re.compile(r"CAST\s*(\(.*\bAS\s+([^()]+(?:\([^()]*\))?)\s*\))", re.IGNORECASE | re.DOTALL)


def string_scheme(field_name: str = "str") -> dict[str, str]:
    """Return a scheme with the record's data as text in one field: Storm's StringScheme."""
    return {field_name: "CAST(data AS STRING)"}


class KinesisSpout:
    """The source as a spout. `options` are those of the format `kinesis-trident`; None means the default.

    `scheme` adds fields to the columns of the source: names, each with an SQL expression over the columns.
    `tracking=False`: its tuples are unanchored, so failed ones are not replayed.

    Raises:
        OptionsError: an option is unknown.
        TopologyError: `scheme` is not a dict, or `tracking` is neither True nor False.
    """

    def __init__(
        self, *, scheme: Mapping[str, str] | None = None, tracking: bool = True, **options: object
    ) -> None:
        given: tuple[object, object] = tracking, scheme
        if not isinstance(given[0], bool) or not isinstance(given[1], Mapping | None):
            msg = (
                f"KinesisSpout got tracking={tracking!r} and scheme={scheme!r}. Give True or False, and a dict of "
                "field names with SQL expressions, such as string_scheme('line')"
            )
            raise TopologyError(msg)
        self.options = {
            name.replace("__", "."): _text(value) for name, value in options.items() if value is not None
        }
        check_names(self.options)
        self.scheme = dict(scheme or {})
        self.tracking = tracking

    def load(self, spark: SparkSession) -> DataFrame:
        """Return the source as a streaming DataFrame, without the fields of `scheme`."""
        return spark.readStream.format("kinesis-trident").options(**self.options).load()

    def scheme_fields(self, spark: SparkSession | None, name: str) -> list[StructField]:
        """Return the fields of `scheme` with their types; `name` is the spout's name in messages.

        Raises:
            TopologyError: a field has the name of a column of the source; Spark cannot read an expression; or there is
                no Spark, and the expression does not tell its type.
        """
        if not self.scheme:
            return []
        check_fields(f"spout {name!r}: its scheme", self.scheme, SCHEMA.names)
        if spark is None:
            return [StructField(field, _find_type(name, field, sql)) for field, sql in self.scheme.items()]
        empty = spark.createDataFrame([], SCHEMA)
        try:
            return empty.selectExpr(
                *(f"{sql} AS {quoted(one)}" for one, sql in self.scheme.items())
            ).schema.fields
        except Exception as error:
            msg = (
                f"spout {name!r}: Spark cannot use its scheme {self.scheme}. Correct the expressions: {error}"
            )
            raise TopologyError(msg) from error


def _find_type(name: str, field: str, sql: str) -> DataType:
    """Return the type of an expression that is a cast, or a column of the source.

    Raises:
        TopologyError: it is another expression: only Spark knows its type.
    """
    if sql in SCHEMA.names:
        return SCHEMA[sql].dataType
    cast = _CAST.fullmatch(sql.strip())
    try:
        return parse_type(cast.group(2) if cast is not None and _is_one_bracket(cast.group(1)) else "")
    except ValueError:
        msg = (
            f"spout {name!r}: without Spark the type of {sql!r}, the field {field!r} of its scheme, is not known. "
            "Write it as CAST(... AS type), or build the topology with a Spark session"
        )
        raise TopologyError(msg) from None


def _is_one_bracket(text: str) -> bool:
    """Return whether the bracket that opens a text is the one that ends it."""
    depths = accumulate((char == "(") - (char == ")") for char in text)
    return all(depth > 0 for depth in list(depths)[:-1])


class DataFrameSpout:
    """Any DataFrame as a spout: its tuples have its columns.

    By itself it is unreliable: its tuples are in no tree, and a failed one is gone. With `message_id`, the name of a
    column, each row is the root of a tree, and after each micro-batch `settle` gets the ids of the rows that are done
    and of those that failed, as DataFrames: it acknowledges them where the rows come from. It is called in the driver,
    again if Spark repeats the batch. If a batch has an id twice, each row is settled on its own.

    Raises:
        TopologyError: `frame` is not a DataFrame, or one of its columns cannot be a field; `message_id` is not a
            column, or comes without `settle`, or the reverse.
    """

    def __init__(
        self, frame: DataFrame, *, message_id: str | None = None, settle: Settle | None = None
    ) -> None:
        given: object = frame
        if not isinstance(given, DataFrame):
            msg = f"DataFrameSpout got {type(given).__name__}. Give a DataFrame, streaming or not"
            raise TopologyError(msg)
        # A tracked row gets a message id of its own.
        check_fields("DataFrameSpout", frame.columns, () if message_id is None else (MESSAGE_ID,))
        if (message_id is None) != (settle is None):
            msg = (
                "DataFrameSpout needs both message_id and settle, or neither: settle(done, failed, txid) gets the ids "
                "of the rows"
            )
            raise TopologyError(msg)
        if message_id is not None and message_id not in frame.columns:
            msg = f"DataFrameSpout: message_id {message_id!r} is not a column. Name one of {', '.join(frame.columns)}"
            raise TopologyError(msg)
        self.frame = frame
        self.message_id = message_id
        self.settle = settle

    @property
    def tracking(self) -> bool:
        """True if the rows are tracked."""
        return self.message_id is not None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
