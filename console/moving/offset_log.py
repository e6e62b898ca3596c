"""Spark's checkpoint of a query that reads Kinesis with Qubole's or awslabs' connector.

Both log where each shard begins in a batch as the offset of that batch (`KinesisSourceOffset` of qubole/kinesis-sql,
`KinesisV2SourceOffset` of awslabs/spark-sql-kinesis-connector). Where it ended, the tasks write elsewhere, as they end:
one file for each shard in `sources/<n>/shard-commit/<batch>` (Qubole) or `sources/<n>/shard-source/<batch>` (awslabs;
`HDFSMetadataCommitter` of each), or for awslabs one item of a table (`DynamodbMetadataCommitter`). The number of the
batch there is the one in the offset, not that of Spark's file.

A batch counts once `commits/<n>` exists. One without was perhaps not processed: it is read again from its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.folder import Folder, FolderError
from kinesis_trident.common.visible_text import shorten
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, System
from kinesis_trident.console.moving.tables import Table
from kinesis_trident.spout.options.starting_position import PositionSpec, position_spec

Ends = Callable[[int, int], Mapping[str, str]]
"""Returns where a batch of the source of an index ended: JSON by shard id; empty if nothing is kept of it."""

_FOLDERS = {System.QUBOLE: "shard-commit", System.AWSLABS: "shard-source"}
_KEY, _SORT, _VALUE = "metadataKey", "metadataSortKey", "metadataValue"


class _Offset(NamedTuple):
    """One source's offset: the source's index in the query, its batch, and its positions by shard id."""

    source: int
    batch: int
    positions: Mapping[str, str]


def read_offset_log(
    system: System, checkpoint: Folder, stream: str, ends: Ends, source: int | None
) -> ForeignCheckpoint:
    """Return how far the query of a checkpoint is in a stream; changes nothing.

    Args:
        system: the connector.
        checkpoint: the folder of the query's `checkpointLocation`.
        stream: its name.
        ends: knows where batches ended.
        source: the index of the source in the query, if several read the stream.

    Raises:
        MigrationError: it is no checkpoint of such a query, or of another stream; the message names the file.
    """
    logged, committed = (_numbers(checkpoint, name) for name in ("offsets", "commits"))
    if not logged:
        msg = (
            f"{checkpoint.place} has no offsets, so no query has used it as its checkpointLocation. Check "
            "--checkpoint-location"
        )
        raise MigrationError(msg)
    newest = _offset(checkpoint, max(logged), stream, source)
    if max(committed, default=-1) >= 0 and max(committed) in logged:
        done = _offset(checkpoint, max(committed), stream, source)
    else:
        done = None
    notes = []
    if done is None or done.batch != newest.batch:
        notes.append(
            f"batch {max(logged)} is logged and not committed, so it counts as not processed: all of its records are "
            "read"
        )
        positions = dict(newest.positions)
    else:
        found = ends(newest.source, newest.batch)
        positions = dict(newest.positions) | _positions(checkpoint.place, stream, found)
        missing = sorted(set(newest.positions) - set(found))
        # A shard that had ended before was not read in this batch.
        missing = [shard for shard in missing if positions[shard] != "SHARD_END"]
        if missing:
            notes.append(
                f"batch {max(logged)} is committed, but not where it ended in {', '.join(missing[:5])}: its records "
                "there are read again"
            )
    return ForeignCheckpoint(system, checkpoint.place, positions, tuple(notes))


def ends_in_folder(system: System, checkpoint: Folder, metadata: Folder | None) -> Ends:
    """Return the reader of a connector's folder, which is `metadata` if the query had one of its own for it."""

    def read(index: int, batch: int) -> dict[str, str]:
        root, source = (metadata, "") if metadata else (checkpoint, f"sources/{index}/")
        folder = f"{source}{_FOLDERS[system]}/{batch}"
        return {shard: _read_text(root, f"{folder}/{shard}") for shard in _names(root, folder)}

    return read


def ends_in_table(table: Table) -> Ends:
    """Return the reader of the table of awslabs' connector.

    Raises:
        MigrationError: it is not such a table.
    """
    keys = table.known_keys()
    if keys != {_KEY: "HASH", _SORT: "RANGE"}:
        msg = (
            f"{table.place} has the key {', '.join(keys)}, so it is not the table of the option "
            f"kinesis.dynamodb.tableName, whose key is {_KEY}, {_SORT}. Check --table"
        )
        raise MigrationError(msg)

    def read(_index: int, batch: int) -> dict[str, str]:
        items = table.of_partition(_KEY, str(batch))
        return {item[_SORT]["S"]: item.get(_VALUE, {}).get("S", "") for item in items}

    return read


def _names(folder: Folder, below: str) -> list[str]:
    """Return the names of the files in a folder, without hidden ones such as checksums."""
    try:
        return [file.base_name for file in folder.files(below) if not file.base_name.startswith("_")]
    except FolderError as error:
        raise _unreadable(folder, below, error) from error


def _numbers(folder: Folder, below: str) -> list[int]:
    """Return the files of a folder whose names are numbers, as Spark numbers its batches."""
    return sorted(int(one) for one in _names(folder, below) if one.isascii() and one.isdigit())


def _read_text(folder: Folder, name: str) -> str:
    try:
        return folder.read(name).decode()
    except (FolderError, UnicodeDecodeError) as error:
        raise _unreadable(folder, name, error) from error


def _unreadable(folder: Folder, name: str, error: Exception) -> MigrationError:
    return MigrationError(
        f"{folder.place}/{name} cannot be read: {error}. Check the path and the access to it"
    )


def _offset(checkpoint: Folder, batch: int, stream: str, source: int | None) -> _Offset:
    """Read the offset of the source that reads the stream, from one file of the log.

    Raises:
        MigrationError: no source reads the stream, or several do.
    """
    name = f"offsets/{batch}"
    place = f"{checkpoint.place}/{name}"
    version, _, rest = _read_text(checkpoint, name).partition("\n")
    if version.strip() not in ("v1", "v2"):
        msg = f"{place} begins with {version[:40]!r}, not with v1. It is not an offset log of Spark that is known here"
        raise MigrationError(msg)
    # The first of the other lines is Spark's own. Of version 2 a line begins with the source's id and a colon.
    lines = [line[line.find("{") :] if "{" in line else "" for line in rest.splitlines()[1:]]
    found: dict[int, dict[str, Any]] = {}
    streams = set()
    for index, line in enumerate(lines):
        try:
            said = msgspec.json.decode(line or "{}", type=dict[str, Any])
            metadata = said.get("metadata")
            if isinstance(metadata, dict) and "streamName" in metadata:
                streams.add(str(metadata["streamName"])[:128])
                if metadata["streamName"] == stream:
                    found[index] = {"batch": _batch_of(metadata), "line": line}
        except (*UNREADABLE, ValueError, KeyError) as error:
            why = shorten(repr(error))
            msg = f"{place}: the offset of source {index} cannot be read: {why}. Restore the file"
            raise MigrationError(msg) from None
    if source is not None:
        found = {index: one for index, one in found.items() if index == source}
    if len(found) != 1:
        what = (
            f"sources {', '.join(map(str, found))} read stream {stream!r}. Choose one with --source"
            if found
            else f"no source reads stream {stream!r}; the streams are {', '.join(sorted(streams)) or 'none'}. Check "
            "--stream, --source and --from: sources of other connectors log other offsets"
        )
        msg = f"{place}: {what}"
        raise MigrationError(msg)
    ((index, one),) = found.items()
    return _Offset(index, one["batch"], _parse_offset(place, stream, one["line"]))


def _batch_of(metadata: dict[str, Any]) -> int:
    """Return the number of the batch in an offset, which is a text.

    Raises:
        ValueError: it is none.
    """
    text = str(metadata["batchId"])
    if not re.fullmatch("[0-9]{1,18}", text):
        msg = f"batchId is {text[:40]!r}"
        raise ValueError(msg)
    return int(text)


def _positions(place: str, stream: str, ends: Mapping[str, str]) -> dict[str, str]:
    """Return the positions of `ShardInfo`s, which have the form of an offset's entries."""
    found: dict[str, str] = {}
    for shard, text in ends.items():
        where = f"{place}, the end of a batch in {shard}"
        try:
            said = msgspec.json.decode(text, type=dict[str, Any])
        except UNREADABLE as error:
            msg = f"{where} cannot be read: {error}. Restore it"
            raise MigrationError(msg) from None
        if said.get("shardId") != shard:
            msg = f"{where} is of shard {str(said.get('shardId'))[:128]!r}: {text[:120]!r}. Check --from and the path"
            raise MigrationError(msg)
        found |= _parse_offset(where, stream, msgspec.json.encode({shard: said}).decode())
    return found


def _parse_offset(place: str, stream: str, offset: str) -> Mapping[str, str]:
    """Return the positions of an offset's JSON, which `startingPosition` accepts too."""
    said = msgspec.json.decode(offset, type=dict[str, Any])
    if not any(name != "metadata" for name in said):
        return {}
    try:
        spec = PositionSpec.parse(position_spec(offset))
    except ValueError as error:
        msg = f"{place} is not an offset of the connector. Expected {shorten(str(error))}"
        raise MigrationError(msg) from None
    return spec.texts_of(stream)
