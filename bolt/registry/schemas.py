"""The schemas of a registry, each asked for once a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_trident.bolt.errors import FailedException, SchemaRegistryError
from kinesis_trident.bolt.registry.avro_columns import Field
from kinesis_trident.bolt.registry.formats import (
    Decoder,
    avro_decoder,
    json_decoder,
    protobuf_decoder,
)
from kinesis_trident.bolt.registry.framing import name_of

_ASK_AGAIN_SECONDS = 60.0
"""How long a schema that the registry does not know is not asked for again."""

_MOST_UNKNOWN = 100
"""Unknown schemas that are asked for within that time: a producer of random ids costs no more calls."""

_UNKNOWN = {"EntityNotFoundException", "InvalidInputException"}


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a schema.

    Args:
        name: its schema's ARN and its id, for messages.
        decoder: of one record.
        plan: to read many records at a time; None if only the decoder can.
    """

    name: str
    decoder: Decoder
    plan: Mapping[str, Field] | None = None

    def decode(self, payload: bytes) -> Mapping[str, Any]:
        """Return the fields of a record.

        Raises:
            FailedException: it does not fit the schema.
        """
        try:
            return self.decoder(payload)
        except Exception as error:
            msg = f"the record does not fit its schema {self.name}: {type(error).__name__}: {error}"
            raise FailedException(msg) from error


class SchemaRegistry:
    """Looks up schema versions by their ids, and keeps them: a version never changes.

    Args:
        client: boto3's client of AWS Glue.
        clock: seconds that never step back.
    """

    def __init__(self, client: Any, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[bytes, RegisteredSchema | str] = {}
        self._unknown: dict[bytes, tuple[float, str]] = {}

    def find(self, schema: bytes) -> RegisteredSchema | str:
        """Return a schema version; or the reason with which its records fail: it is unknown, or cannot be used.

        Raises:
            SchemaRegistryError: the registry does not answer, or a package is missing.
        """
        found = self._known.get(schema)
        if found is not None:
            return found
        now = self._clock()
        self._unknown = {
            one: told for one, told in self._unknown.items() if now - told[0] < _ASK_AGAIN_SECONDS
        }
        if schema in self._unknown:
            return self._unknown[schema][1]
        if len(self._unknown) >= _MOST_UNKNOWN:
            return (
                f"the schema version {name_of(schema)} was not looked up: {_MOST_UNKNOWN} others within "
                f"{_ASK_AGAIN_SECONDS:.0f} s are not in the registry. Check what writes them"
            )
        found = self._look_up(schema)
        if found is None:
            reason = (
                f"the schema version {name_of(schema)} is not in the registry, or not available. Register it, or "
                "check the region and the account"
            )
            self._unknown[schema] = now, reason
            return reason
        self._known[schema] = found
        return found

    def _look_up(self, schema: bytes) -> RegisteredSchema | str | None:
        try:
            answer = self._client.get_schema_version(SchemaVersionId=name_of(schema))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _UNKNOWN:
                return None
            raise _unavailable(schema, error) from error
        except BotoCoreError as error:
            raise _unavailable(schema, error) from error
        if answer.get("Status", "AVAILABLE") != "AVAILABLE" or "SchemaDefinition" not in answer:
            return None
        name = f"{answer.get('SchemaArn', 'of unknown name')} (version {name_of(schema)})"
        try:
            return _schema_of(name, answer["DataFormat"], answer["SchemaDefinition"])
        except SchemaRegistryError:
            raise
        except Exception as error:
            return f"the schema {name} cannot be used: {type(error).__name__}: {error}"


def _schema_of(name: str, data_format: str, definition: str) -> RegisteredSchema:
    match data_format:
        case "AVRO":
            return RegisteredSchema(name, *avro_decoder(definition))
        case "JSON":
            return RegisteredSchema(name, json_decoder(definition))
        case "PROTOBUF":
            return RegisteredSchema(name, protobuf_decoder(definition))
    msg = f"its format is {data_format}; expected AVRO, JSON or PROTOBUF"
    raise ValueError(msg)


def _unavailable(schema: bytes, error: Exception) -> SchemaRegistryError:
    return SchemaRegistryError(
        f"AWS Glue Schema Registry did not return the schema version {name_of(schema)}: {error}. Allow "
        "glue:GetSchemaVersion to the executors, and check region, endpoint and quotas; the records are not failed"
    )
