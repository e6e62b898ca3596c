"""The protobuf messages of the Kinesis Producer Library; imported when the first aggregate is opened."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = ["AggregatedRecord", "DecodeError", "Outline"]


def _message_classes() -> tuple[Any, ...]:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kpl/messages.proto", package="kpl", syntax="proto2")
    messages: dict[str, list[tuple[str, Any, Any, str | None]]] = {
        "Tag": [
            ("key", field.LABEL_REQUIRED, field.TYPE_STRING, None),
            ("value", field.LABEL_OPTIONAL, field.TYPE_STRING, None),
        ],
        "Record": [
            ("partition_key_index", field.LABEL_REQUIRED, field.TYPE_UINT64, None),
            ("explicit_hash_key_index", field.LABEL_OPTIONAL, field.TYPE_UINT64, None),
            ("data", field.LABEL_REQUIRED, field.TYPE_BYTES, None),
            ("tags", field.LABEL_REPEATED, field.TYPE_MESSAGE, ".kpl.Tag"),
        ],
        "AggregatedRecord": [
            # Published as strings, the same on the wire; implementations differ on bytes that are not UTF-8.
            ("partition_key_table", field.LABEL_REPEATED, field.TYPE_BYTES, None),
            ("explicit_hash_key_table", field.LABEL_REPEATED, field.TYPE_BYTES, None),
            ("records", field.LABEL_REPEATED, field.TYPE_MESSAGE, ".kpl.Record"),
        ],
    }
    keys, hashes, _ = messages["AggregatedRecord"]
    messages["Outline"] = [keys, hashes, ("records", field.LABEL_REPEATED, field.TYPE_BYTES, None)]
    for name, members in messages.items():
        message = file.message_type.add(name=name)
        for number, (member, label, kind, of) in enumerate(members, start=1):
            message.field.add(name=member, number=number, label=label, type=kind, type_name=of)
    # A separate pool: other packages register this message in the default one, under names that would clash.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kpl.{name}"))
        for name in ("AggregatedRecord", "Outline")
    )


_classes = _message_classes()

AggregatedRecord: Any = _classes[0]
"""The message: `partition_key_table` and `explicit_hash_key_table`, both UTF-8, and `records` pointing into them."""

Outline: Any = _classes[1]
"""The same message with records that are not decoded yet."""
