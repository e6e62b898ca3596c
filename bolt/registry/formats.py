"""Decodes records of one schema: Avro by fastavro, JSON by msgspec, Protobuf by the compiler of grpcio-tools.

Each decoder takes a payload and returns all fields that the schema knows, with None for what is absent.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from kinesis_trident.bolt.errors import SchemaRegistryError
from kinesis_trident.bolt.registry.avro_columns import Field, plan_of
from kinesis_trident.common.private_names import avro_reader_in_python

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

Decoder = Callable[[bytes], Mapping[str, Any]]


def avro_decoder(definition: str) -> tuple[Decoder, Mapping[str, Field] | None]:
    """Return a decoder, and the plan to read many records at a time, if there is one.

    Raises:
        SchemaRegistryError: fastavro is not installed.
        Exception: of many classes: it is no Avro schema, or not that of a record.
    """
    _require("fastavro", "fastavro", "Avro")
    import fastavro

    schema: Any = fastavro.parse_schema(json.loads(definition))
    if not isinstance(schema, dict) or schema["type"] != "record":
        msg = "it is not the schema of a record"
        raise ValueError(msg)
    named = schema["__named_schemas"]
    _refuse_empty_items(schema, named)
    read: Any = fastavro.schemaless_reader
    if _is_recursive(schema, named, (), set()):
        # The reader in C does not count how deep it is: a record of a few thousand bytes ends the process.
        read = avro_reader_in_python()

    def decode(payload: bytes) -> Mapping[str, Any]:
        stream = io.BytesIO(payload)
        try:
            found: Any = read(stream, schema, None)
        except RecursionError:
            msg = "it is nested too deeply"
            raise ValueError(msg) from None
        except EOFError:
            # Its message has the address of the stream: another reason for each record.
            msg = "it ends before its last field"
            raise ValueError(msg) from None
        if stream.tell() != len(payload):
            msg = f"{len(payload) - stream.tell()} bytes follow its last field"
            raise ValueError(msg)
        # Arrow has no conversion of these to text.
        return {name: str(value) if type(value) is UUID else value for name, value in found.items()}

    return decode, plan_of(schema)


def _is_recursive(schema: Any, named: Mapping[str, Any], above: tuple[str, ...], passed: set[str]) -> bool:
    """Return whether a value of a schema may be within one of the same; `passed`: names of which none may be."""
    if isinstance(schema, str):
        schema = named.get(schema)
    if isinstance(schema, list):
        return any(_is_recursive(one, named, above, passed) for one in schema)
    if not isinstance(schema, dict) or schema.get("name") in passed:
        return False
    name = schema.get("name")
    if name in above:
        return True
    inner = [
        schema.get("items"),
        schema.get("values"),
        *(field["type"] for field in schema.get("fields", ())),
    ]
    if any(_is_recursive(one, named, above if name is None else (*above, name), passed) for one in inner):
        return True
    passed.add(name or "")
    return False


def _refuse_empty_items(schema: Any, named: Mapping[str, Any]) -> None:
    """Refuse arrays of items without bytes: a record of ten bytes could have 2**62 of them.

    Raises:
        ValueError: there is one.
    """
    if isinstance(schema, list):
        for one in schema:
            _refuse_empty_items(one, named)
    elif isinstance(schema, dict):
        if schema["type"] == "array" and _may_be_empty(schema["items"], named, ()):
            msg = "it has an array of items that take no bytes"
            raise ValueError(msg)
        inner = [schema.get("items"), schema.get("values"), schema["type"]]
        for one in [*inner, *(field["type"] for field in schema.get("fields", ()))]:
            _refuse_empty_items(one, named)


def _may_be_empty(schema: Any, named: Mapping[str, Any], above: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    if not isinstance(schema, dict):
        return bool(schema == "null")
    kind = schema["type"]
    if kind == "record" and schema["name"] not in above:
        inner = (*above, schema["name"])
        return all(_may_be_empty(one["type"], named, inner) for one in schema["fields"])
    return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))


def json_decoder(definition: str, float_hook: Callable[[str], Any] | None = None) -> Decoder:
    """Return a decoder of documents; the schema tells the names of the fields, and no document is validated by it.

    Args:
        definition: the schema.
        float_hook: makes the value of a number with a point; by default a float.

    Raises:
        ValueError: it is no JSON schema.
    """
    schema = json.loads(definition)
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        msg = "it is not an object, or its properties are not"
        raise ValueError(msg)
    absent = dict.fromkeys(properties)
    parser = msgspec.json.Decoder(dict[str, Any], float_hook=float_hook)
    return lambda payload: absent | parser.decode(payload)


def protobuf_decoder(definition: str) -> Decoder:
    """Return a decoder of messages: a number before each says which of the file's messages it is.

    The messages are numbered in the order of their full names, those inside others too (AWS's `MessageIndexFinder`).

    Raises:
        SchemaRegistryError: grpcio-tools is not installed.
        ValueError: protobuf's compiler refuses the schema.
    """
    _require("grpc_tools", "grpcio-tools", "Protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(definition))
    for file in files.file:
        pool.Add(file)
    top = pool.FindFileByName(files.file[-1].name).message_types_by_name.values()
    kinds = [
        message_factory.GetMessageClass(one)
        for one in sorted(_with_nested(list(top)), key=lambda descriptor: descriptor.full_name)
    ]

    def decode(payload: bytes) -> Mapping[str, Any]:
        number, at = _number(payload)
        if number >= len(kinds):
            msg = f"it is of the message {number} of a file that has {len(kinds)}"
            raise ValueError(msg)
        return _fields_of(kinds[number].FromString(payload[at:]))

    return decode


def _compiled(definition: str) -> bytes:
    import grpc_tools
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="kinesis-trident-") as folder:
        source, compiled = Path(folder, "schema.proto"), Path(folder, "schema.bin")
        source.write_text(definition, encoding="utf-8")
        known = Path(str(grpc_tools.__file__)).parent / "_proto"
        code = protoc.main(
            ["protoc", f"-I{folder}", f"-I{known}", "--include_imports", f"-o{compiled}", source.name]
        )
        if code:
            msg = "protobuf's compiler refuses it, for the reason that it has written to the log of the executor"
            raise ValueError(msg)
        return compiled.read_bytes()


def _with_nested(messages: list[Descriptor]) -> list[Descriptor]:
    return [one for message in messages for one in (message, *_with_nested(list(message.nested_types)))]


def _number(payload: bytes) -> tuple[int, int]:
    """Return the number at the beginning, in Protobuf's encoding, and where it ends."""
    number = 0
    for at, byte in enumerate(payload[:5]):
        number |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return number, at + 1
    msg = "it does not begin with the number of its message"
    raise ValueError(msg)


def _fields_of(message: Message) -> dict[str, Any]:
    """Return all fields of a message; those that can be absent and are, as None."""
    return {
        field.name: _value(field, getattr(message, field.name))
        if not field.has_presence or message.HasField(field.name)
        else None
        for field in message.DESCRIPTOR.fields
    }


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return [(key, _single(inner, one)) for key, one in value.items()]
    if field.is_repeated:
        return [_single(field, one) for one in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.message_type is None:
        return value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        from datetime import UTC

        return value.ToDatetime(tzinfo=UTC)
    return _fields_of(value)


def _require(module: str, package: str, what: str) -> None:
    """Check that a module can be imported.

    Raises:
        SchemaRegistryError: it cannot.
    """
    if find_spec(module) is None:
        msg = (
            f"a record is written as {what}, whose decoder needs the package {package}. Install it on the executors: "
            "pip install 'kinesis-trident[glue]'"
        )
        raise SchemaRegistryError(msg)
