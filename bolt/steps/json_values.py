"""Values of JSON documents for columns of a type: JSON has no decimals, and leaves out what is null. Pure."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from math import isinf
from typing import Any

import pyarrow as pa


def differs(kind: pa.DataType) -> bool:
    """Return whether a JSON value may have to be changed for a column of this type."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_nested(kind))


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a document, whose numbers with a point were read as decimals, for a column of a type.

    Members of a struct that an object leaves out are null, and a text of a number is a decimal.

    Raises:
        ValueError: a text for a decimal is no number, or a number is none of a double.
    """
    match value:
        case str() if pa.types.is_decimal(kind):
            return _decimal(value)
        case Decimal() if not pa.types.is_decimal(kind):
            # Whole ones of any size are written in a few letters, and as an int take memory for each digit.
            is_long = pa.types.is_integer(kind) and -(2**63) <= value < 2**63
            return int(value) if is_long and value == value.to_integral_value() else _float(value)
        case dict() if pa.types.is_struct(kind):
            return {one.name: from_json(value.get(one.name), one.type) for one in kind}
        case dict() if pa.types.is_map(kind):
            return {key: from_json(one, kind.item_type) for key, one in value.items()}
        case list() if pa.types.is_list(kind):
            return [from_json(one, kind.value_type) for one in value]
    return value


def _float(value: Decimal) -> float:
    found = float(value)
    if isinf(found):
        msg = f"{value} is out of the range of a double"
        raise ValueError(msg)
    return found


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        msg = f"{text!r} is not a number, as its column needs"
        raise ValueError(msg) from None
