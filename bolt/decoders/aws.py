"""Decodes the records that AWS's services write into a stream. Pure.

- CloudWatch Logs: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/SubscriptionFilters.html
- DMS: https://docs.aws.amazon.com/dms/latest/userguide/CHAP_Target.Kinesis.html
- DynamoDB: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_streams_Record.html, with the name of the
  table beside, and https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_AttributeValue.html
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

Row = Mapping[str, Any]


def log_events(document: Row) -> Iterator[Row]:
    """Yield the log events of a subscription's message, each with the group and stream; of a control message none.

    Raises:
        ValueError: it is no such message.
    """
    match document:
        case {"messageType": "CONTROL_MESSAGE"}:
            return
        case {"messageType": "DATA_MESSAGE", "logEvents": list(events)}:
            about = {
                name: value for name, value in document.items() if name not in ("messageType", "logEvents")
            }
            for event in events:
                if not isinstance(event, dict):
                    msg = f"a log event is {type(event).__name__}, expected an object"
                    raise ValueError(msg)
                yield about | event
        case _:
            msg = (
                f"its messageType is {document.get('messageType')!r}, expected DATA_MESSAGE with logEvents or "
                "CONTROL_MESSAGE: it is not of a subscription of CloudWatch Logs"
            )
            raise ValueError(msg)


def changes_of_dms(document: Row, table: str | None) -> Iterator[Row]:
    """Yield the row of a change, with the `metadata`; of control records, and of other tables than `table`, none.

    Raises:
        ValueError: it is no such message.
    """
    match document:
        case {"metadata": {"record-type": "control"}}:
            return
        case {"metadata": {"record-type": "data", **metadata}, "data": dict(data)}:
            name = f"{metadata.get('schema-name')}.{metadata.get('table-name')}"
            if table is None or table == name:
                # A column of the table may have the name of a member of the record.
                yield data | {name: value for name, value in document.items() if name != "data"}
        case _:
            msg = "it has no metadata with the record-type data or control: it is not of AWS DMS"
            raise ValueError(msg)


_IMAGES = ("Keys", "NewImage", "OldImage")


def change_of_dynamodb(document: Row) -> Row:
    """Return a change of a table: what is in `dynamodb` stands beside the rest, and attributes are plain values.

    Raises:
        ValueError: it is no such message.
    """
    change = document.get("dynamodb")
    if not isinstance(change, dict):
        msg = "it has no object dynamodb: it is not of a table's stream to Kinesis"
        raise ValueError(msg)
    images = {
        name: {key: _plain(value) for key, value in _dict(change.get(name)).items()} for name in _IMAGES
    }
    others = {name: value for name, value in document.items() if name != "dynamodb"}
    return others | change | {name: image if name in change else None for name, image in images.items()}


def _dict(value: Any) -> Row:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    msg = f"an image is {type(value).__name__}, expected an object of attributes"
    raise ValueError(msg)


def _plain(attribute: Any) -> Any:
    if not isinstance(attribute, dict) or len(attribute) != 1:
        msg = f"an attribute is {attribute!r:.100}, expected an object with one type, such as {{'S': 'text'}}"
        raise ValueError(msg)
    ((kind, value),) = attribute.items()
    convert = _TYPES.get(kind)
    if convert is None:
        msg = f"an attribute has the type {kind!r:.100}, which DynamoDB does not have"
        raise ValueError(msg)
    try:
        return convert(value)
    except (TypeError, AttributeError, InvalidOperation, binascii.Error) as error:
        msg = f"the attribute {attribute!r:.100} is not of its type: {type(error).__name__}"
        raise ValueError(msg) from None


def _all(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [convert(value) for value in values]


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "S": str,
    "N": Decimal,
    "B": _bytes,
    "BOOL": bool,
    "NULL": lambda _value: None,
    "M": lambda value: {key: _plain(one) for key, one in value.items()},
    "L": _all(_plain),
    "SS": _all(str),
    "NS": _all(Decimal),
    "BS": _all(_bytes),
}
