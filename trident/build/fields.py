"""Fields of tuples: names with Spark types, parsed from the user's text and checked when a topology is built."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    IntegralType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.names import check_fields
from kinesis_trident.bolt.steps.schemas import parse_schema

Fields = str | Sequence[str] | StructType
"""Field names: `["word", "count"]`, or with types, `["word", "count bigint"]`; `"word, count bigint"` is the same."""

Names = str | Sequence[str]
"""Names of existing fields: `["word", "count"]`, or `"word, count"`."""

_NAME = re.compile(r"\w+")


def new_fields(fields: Fields, operation: str, default: Sequence[StructField] = ()) -> StructType:
    """Parse the fields that an operation adds. The type of a bare name is that in `default` at its index, or string.

    Raises:
        TopologyError: a field cannot be parsed, or its name cannot be one.
    """
    if isinstance(fields, StructType):
        found = list(fields.fields)
    else:
        found = []
        for at, item in enumerate(_split(fields)):
            if _NAME.fullmatch(item):
                kind = default[at].dataType if at < len(default) else StringType()
                found.append(StructField(item, kind))
                continue
            try:
                found += parse_schema(item).fields
            except Exception as error:
                msg = (
                    f"{operation}: the field {item!r} cannot be parsed. Write 'name' or 'name type', as in 'count "
                    "bigint'"
                )
                raise TopologyError(msg) from error
    check_fields(operation, [field.name for field in found])
    return StructType(found)


def choose_fields(fields: str | Sequence[str], schema: StructType, operation: str) -> tuple[str, ...]:
    """Parse the names that an operation reads, all of them in `schema`.

    Raises:
        TopologyError: a field is unknown, or there twice; the message names the nearest.
    """
    names = tuple(_split(fields))
    for name in names:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            msg = f"{operation}: there is no field {name!r}{hint} The stream has {', '.join(schema.names)}"
            raise TopologyError(msg)
    check_fields(operation, [name for name in names if not name.startswith("__")])
    return names


def key_fields(fields: Names, schema: StructType, operation: str) -> tuple[str, ...]:
    """Parse the names of group fields.

    Raises:
        TopologyError: a field is unknown, or holds maps or structs, which cannot be keys.
    """
    names = choose_fields(fields, schema, operation)
    for name in names:
        kind = schema[name].dataType
        if not _is_key(kind):
            msg = (
                f"{operation}: the field {name!r} is {kind.simpleString()}, which cannot be a key. Group by its "
                "inner fields, or by its text, made with .transform() and to_json"
            )
            raise TopologyError(msg)
    return names


def check_same_kind(operation: str, key: StructField, field: StructField) -> None:
    """Check that a field can have the values of a key of a state: whole numbers of any width are alike.

    Raises:
        TopologyError: it has another type, so that no key would be found.
    """
    ours, theirs = (
        "bigint" if isinstance(one.dataType, IntegralType) else one.dataType.simpleString()
        for one in (field, key)
    )
    if ours != theirs:
        msg = (
            f"{operation}: the key {key.name!r} of the state is {theirs}, and the field {field.name!r} is {ours}, so "
            "nothing would be found. Convert it with map, or query another field"
        )
        raise TopologyError(msg)


def append_fields(schema: StructType, added: StructType, operation: str) -> StructType:
    """Return a schema with a function's new fields at its end.

    Raises:
        TopologyError: a field exists already; for Spark `Word` is `word`.
    """
    check_fields(operation, [name for name in added.names if not name.startswith("__")], schema.names)
    return StructType([*schema.fields, *added.fields])


def _is_key(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_key(kind.elementType)
    return isinstance(kind, AtomicType | NullType)


def _split(fields: str | Sequence[str]) -> list[str]:
    """Split a text at commas, but not within brackets of any depth: `decimal(10,2)`, `map<string,array<int>>`."""
    if not isinstance(fields, str):
        return [item.strip() for item in fields]
    items, depth = [""], 0
    for letter in fields:
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items if item.strip()]
