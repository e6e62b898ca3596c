"""`startingPosition` and `endingPosition`: a position for all shards of a stream, or one for each. Pure.

The JSON form is `{"orders": "TRIM_HORIZON", "payments": {"shardId-000000000000": "AFTER_SEQUENCE_NUMBER 49..."}}`.
The checkpoints of the JVM connectors are accepted too (`KinesisPosition.fromCheckpointJson` of qubole/kinesis-sql,
`KinesisV2SourceOffset` of awslabs/spark-sql-kinesis-connector):

    {"metadata": {"streamName": "orders", "batchId": "7"},
     "shardId-000000000000": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "4959...",
                              "subSequenceNumber": "1", "isLast": "false"}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.times import timestamp
from kinesis_trident.common.visible_text import shorten
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.positions import (
    TRIM_HORIZON,
    After,
    At,
    AtTimestamp,
    Position,
    ShardEnd,
    parse_position,
)
from kinesis_trident.tracker.records import RecordPosition

LATEST = "LATEST"
"""A word in the place of a position: whoever uses it resolves it to a time."""

REST = "*"
"""Stands for every stream, or shard, without an entry of its own."""

_ACCEPTED = (
    "LATEST, TRIM_HORIZON, EARLIEST, `AT_TIMESTAMP <ISO 8601 or epoch>`, or JSON with a position for each shard or "
    "stream (docs/positions.md)"
)
_OF_ONE_SHARD = {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "SHARD_END"}

_SEQUENCE = re.compile(r"[0-9]{1,129}(:[0-9]{1,9})?")
"""Nodes hold a sub-sequence number of up to 2^31."""

Texts = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class PositionSpec:
    """The start or end position by stream and shard.

    `texts` maps a stream (`REST`: all streams) to a map from shard id (`REST`: all other shards) to LATEST or the text
    form of a position.
    """

    texts: Mapping[str, Mapping[str, str]]

    @classmethod
    def parse(cls, text: str) -> PositionSpec:
        """Parse the text that `position_spec` returned."""
        if text.startswith("{"):
            return cls(msgspec.json.decode(text, type=Texts))
        return cls({REST: {REST: text}})

    def check_streams(self, option: str, streams: Collection[str]) -> None:
        """Check that every stream has a position and every entry a stream; raise `OptionsError` otherwise."""
        for stream in sorted(set(self.texts) - {REST, *streams}):
            msg = f"option {option} names the stream {stream!r}, but streamName has only {', '.join(streams)}"
            raise OptionsError(msg)
        if REST not in self.texts:
            for stream in sorted(set(streams) - set(self.texts)):
                msg = (
                    f'option {option} has no entry for the stream {stream!r}. Add one, or "*" for all others'
                )
                raise OptionsError(msg)
        elif len(streams) > 1 and set(self.texts[REST]) != {REST}:
            msg = (
                f"option {option} names shards, but there are several streams ({', '.join(streams)}). Put the shards "
                'of each stream below its name, as in {"orders": {"shardId-000000000000": ...}, ...}'
            )
            raise OptionsError(msg)

    def list_named(self, stream: str) -> list[str]:
        """Return the shards of a stream that have an entry of their own."""
        return sorted(set(self.texts_of(stream)) - {REST})

    def text_of(self, stream: str, shard: str) -> str:
        """Return the text of a shard that has an entry of its own."""
        return self.texts_of(stream)[shard]

    def text_of_others(self, stream: str, default: str) -> str:
        """Return the text of the shards of a stream that have no entry of their own."""
        return self.texts_of(stream).get(REST, default)

    def find_common(self, stream: str, latest: Callable[[], Position]) -> Position | None:
        """Return the one position of all shards of a stream; None if some shards have entries of their own."""
        texts = self.texts_of(stream)
        return resolve_position(texts[REST], latest) if set(texts) == {REST} else None

    def find_reversed(self, start: PositionSpec) -> str | None:
        """Describe the first entry of this end that is before `start`; None if there is none.

        Compares times with times, and sequence numbers with sequence numbers of the same shard.
        """
        for stream in sorted({*self.texts, *start.texts}):
            ends, starts = self.texts_of(stream), start.texts_of(stream)
            for shard in sorted({*ends, *starts}):
                end, begin = (texts.get(shard, texts.get(REST, LATEST)) for texts in (ends, starts))
                if _is_before(end, begin):
                    where = "".join(f"{one} " for one in (stream, shard) if one != REST)
                    return f"{where}{end} is before {begin}"
        return None

    def texts_of(self, stream: str) -> Mapping[str, str]:
        """Return the texts of a stream, by shard and `REST`."""
        return self.texts.get(stream, self.texts.get(REST, {}))


def position_spec(given: str) -> str:
    """Parse to LATEST, AT_TIMESTAMP alone, or the text form of a position; else to `PositionSpec.texts` as JSON.

    Raises:
        ValueError: saying what is accepted.
    """
    given = given.strip()
    if not _is_utf8(given):
        msg = f"{_ACCEPTED}; {_quote(given)} has halves of surrogate pairs"
        raise ValueError(msg)
    if not given.startswith("{"):
        if given.upper() == "AT_TIMESTAMP":
            return given.upper()
        return _place(given, one_shard=False)
    try:
        said = msgspec.json.decode(given, type=dict[str, Any])
    except UNREADABLE as error:
        msg = f"{_ACCEPTED}; this is not a JSON object: {error}"
        raise ValueError(msg) from None
    metadata = said.pop("metadata", {})
    if any(key.startswith("shardId-") for key in said):
        name = metadata.get("streamName", REST) if isinstance(metadata, dict) else REST
        said = {str(name): said}
    texts = {stream: _places_of(stream, value) for stream, value in said.items()}
    if not texts:
        msg = f"{_ACCEPTED}; this JSON is empty"
        raise ValueError(msg)
    return msgspec.json.encode(texts, order="sorted").decode()


def _places_of(stream: str, said: object) -> dict[str, str]:
    if isinstance(said, str):
        return {REST: _place(said, one_shard=False)}
    if not isinstance(said, dict) or not said:
        msg = f"{_ACCEPTED}; the entry of {_quote(stream)} is {_quote(said)}"
        raise ValueError(msg)
    said.pop("metadata", None)
    return {
        shard: _place(_translate(shard, value), one_shard=shard != REST)
        for shard, value in sorted(said.items())
    }


def _translate(shard: str, said: object) -> str:
    """Return the text form of another connector's object."""
    if isinstance(said, str):
        return said
    if not isinstance(said, dict) or not isinstance(said.get("iteratorType"), str):
        msg = (
            'a position for each shard, such as TRIM_HORIZON, or {"iteratorType": "AFTER_SEQUENCE_NUMBER", '
            '"iteratorPosition": "4959..."}; '
            f"the entry of {shorten(shard, 200)} is {_quote(said)}"
        )
        raise ValueError(msg)
    text = f"{said['iteratorType']} {said.get('iteratorPosition') or ''}".strip()
    sub = str(said.get("subSequenceNumber", "-1"))
    # The last user record of an aggregate: the whole aggregate is read.
    last = str(said.get("isLast", "false")).lower() == "true"
    return text if sub.startswith("-") or last else f"{text}:{sub}"


def _place(text: str, *, one_shard: bool) -> str:
    kind, _, rest = text.strip().partition(" ")
    kind, rest = kind.upper(), rest.strip()
    try:
        match kind:
            case "LATEST" if not rest:
                return LATEST
            case "TRIM_HORIZON" | "EARLIEST" if not rest:
                return str(TRIM_HORIZON)
            case "AT_TIMESTAMP" if rest:
                return str(AtTimestamp(timestamp(rest)))
            case "SHARD_END" if one_shard and not rest:
                return str(ShardEnd())
            case "AT_SEQUENCE_NUMBER" if one_shard:
                return str(At(_sequence(rest)))
            case "AFTER_SEQUENCE_NUMBER" if one_shard:
                return str(After(_sequence(rest)))
    except ValueError as error:
        msg = f"{_ACCEPTED}; {_quote(text)} is wrong: {error}"
        raise ValueError(msg) from None
    if kind in _OF_ONE_SHARD and not one_shard:
        msg = f"{_ACCEPTED}; {kind} applies to one shard: put it below the shard's id"
        raise ValueError(msg)
    msg = f"{_ACCEPTED}; not {_quote(text)}"
    raise ValueError(msg)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quote(said: object) -> str:
    return shorten(repr(said), 200)


def _is_before(end: str, start: str) -> bool:
    if LATEST in (end, start):
        return False
    match parse_position(end), parse_position(start):
        case AtTimestamp(last), AtTimestamp(first):
            return last < first
        case ((At(last) | After(last)), (At(first) | After(first))):
            return last < first
    return False


def _sequence(text: str) -> RecordPosition:
    """Parse a sequence number, or `<sequence number>:<sub-sequence number>`."""
    if not _SEQUENCE.fullmatch(text):
        msg = "a sequence number has up to 129 digits, followed by :<sub> within an aggregate"
        raise ValueError(msg)
    return RecordPosition.parse(text)


def resolve_position(text: str, latest: Callable[[], Position]) -> Position:
    """Return the position that a text of `PositionSpec` stands for."""
    return latest() if text == LATEST else parse_position(text)
