"""Chooses the kind of step for a user's function, by the type hint of its parameter."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

import pyarrow as pa
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.functions import ArrowStep, Decodes, PandasStep, RowStep, Step
from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.options.connection import ConnectionOptions

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME = {kind.__name__: kind for kind in (pa.RecordBatch, pa.Table)}


def step_for(
    function: Callable[..., Any] | Decodes,
    schema: StructType | str,
    connection: ConnectionOptions | None = None,
) -> Step:
    """Make a step of a function; the type hint of its parameter decides if it is vectorised.

    `pandas.DataFrame`: a pandas function; `pyarrow.RecordBatch` or `pyarrow.Table`: an Arrow function; anything
    else, or no hint: a function of one record. A decoder makes its own step, and may need the stream's `connection`.

    Raises:
        OperatorError: the schema cannot be parsed or uses a reserved name, or the function does not take one
            argument.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parsed: object = parse_schema(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise OperatorError(_unreadable(name, schema, error)) from error
    if not isinstance(parsed, StructType):
        raise OperatorError(_unreadable(name, schema, type(schema).__name__))
    ours = [field.name for field in parsed.fields if field.name.startswith("__")]
    if ours or not parsed.fields:
        msg = (
            f"operator {name}: the schema {parsed.simpleString()!r} is not valid. It needs columns, none of which "
            "may begin with '__'"
        )
        raise OperatorError(msg)
    arrow = arrow_schema(parsed)
    if isinstance(function, Decodes):
        return function.make_step(arrow, connection or ConnectionOptions())
    kind = _first_hint(function, name)
    if _is_data_frame(kind):
        return PandasStep(function, arrow)
    if kind is pa.RecordBatch:
        return ArrowStep(function, arrow)
    if kind is pa.Table:
        return ArrowStep(lambda batch: function(pa.Table.from_batches([batch])), arrow)
    return RowStep(function, arrow)


def _unreadable(name: str, schema: object, why: object) -> str:
    form = "order_id string, amount double"
    return f"operator {name}: the schema {schema!r} cannot be parsed ({why}). Write it as {form!r}"


def _first_hint(function: Callable[..., Any], name: str) -> Any:
    """Return the type hint of the first parameter; None if it has none."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if not parameters:
        msg = (
            f"operator {name}: the function takes no argument. Give it one parameter, for a record or a batch"
        )
        raise OperatorError(msg)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in _ANY_NUMBER]
    if len(needed) > 1:
        msg = (
            f"operator {name}: the function needs {len(needed)} arguments ({', '.join(needed)}). Give it one "
            "parameter, for a record or a batch"
        )
        raise OperatorError(msg)
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return get_type_hints(target).get(parameters[0].name)
    except Exception:
        # A name that exists only for the type checker, or where the function was defined: the hint's text suffices.
        name = str(parameters[0].annotation).rpartition(".")[2]
        return _BY_NAME.get(name, name)


def _is_data_frame(hint: Any) -> bool:
    """Return whether a type hint, or its name, is pandas' DataFrame, without importing pandas."""
    if isinstance(hint, str):
        return hint == "DataFrame"
    pandas = sys.modules.get("pandas")
    return pandas is not None and hint is pandas.DataFrame
