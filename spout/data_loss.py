"""Reports lost records, and stops or continues the query as `failOnDataLoss` says."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, Pin
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.errors import DataLossError, StreamRecreatedError
from kinesis_trident.spout.kinesis import StreamInfo
from kinesis_trident.spout.positions import Position
from kinesis_trident.spout.shard_rules import HOUR_MS, is_past_retention

log = logging.getLogger(__name__)

_NAMED = 5
"""The maximum of shards of a recreated stream named with their positions."""

_LAST = 5
"""The number of losses that the progress describes."""

_DROPPED = "the server has dropped the shard, as some local servers do when they split or merge one"

_GO_ON = "continuing with the remaining records (failOnDataLoss=false)"


class DataLossLog:
    """The data losses of a run: each stops it, or with `failOnDataLoss=false` is logged once and kept for the progress.

    Args:
        fail: `failOnDataLoss`.
        remedy: what helps against it, for the error.

    Attributes:
        count: of the losses.
        last: descriptions of the newest ones.
    """

    def __init__(self, fail: bool, remedy: str = "Raise the stream's retention or read more often") -> None:
        self._fail = fail
        self._remedy = remedy
        self.count = 0
        self.last: deque[str] = deque(maxlen=_LAST)

    def report(self, what: str, *, expired: bool = True, is_known: bool = False) -> None:
        """Report lost records. Every check finds the same loss until the shard moves on: then `is_known`.

        `expired`: retention may have taken them.

        Raises:
            DataLossError: with `failOnDataLoss`.
        """
        if self._fail:
            remedy = self._remedy if expired else "Check the server at endpointUrl"
            msg = f"{what}. {remedy}; to continue with the remaining records, set failOnDataLoss=false"
            raise DataLossError(msg)
        if not is_known:
            self.record(what)
            log.error("%s; %s", what, _GO_ON)

    def record(self, what: str) -> None:
        """Record a loss for the progress; the caller has handled and logged it."""
        self.count += 1
        self.last.append(what)


def may_have_expired(info: StreamInfo) -> bool:
    """Return whether a stream is older than its retention: before, it has lost nothing to it."""
    return info.server_time - info.created >= info.retention_hours * 3_600_000


def _young(info: StreamInfo) -> str:
    # The server says its time in whole seconds.
    minutes = max(0, info.server_time - info.created) / 60_000
    return f"the stream is {minutes:.1f} min old and keeps {info.retention_hours} h, so this is not its retention"


def describe_expired_unread(
    info: StreamInfo, shard: str, position: Position, node: CheckpointNode | None, known: int
) -> str | None:
    """Describe the loss in a shard whose position is older than the retention; None if it is not.

    `known`: the time up to which no record was lost, as `find_known`.
    """
    if not is_past_retention(known, info):
        return None
    stood = (
        "whose last record arrived"
        if node is not None and node.arrival
        else "with nothing read since it was last looked at"
    )
    return (
        f"stream {info.name!r}, shard {shard}: reading stands at {position}, {stood} "
        f"{_ago(info, known)}, but the stream keeps only {info.retention_hours} h: records may have expired unread"
    )


def describe_expired_start(info: StreamInfo, shard: str, position: Position) -> str:
    """Describe the loss in a shard whose starting record is no longer in the stream."""
    seen = (
        f"stream {info.name!r}, shard {shard}: reading is to go on from {position}, but the stream does not hold that "
        f"record at {iso_time(info.server_time)}"
    )
    if not may_have_expired(info):
        return f"{seen}; {_young(info)}: no record of the shard has that number, or the server has dropped it"
    return f"{seen}, and keeps only {info.retention_hours} h: records after it may have expired unread"


def describe_gone_unread(
    info: StreamInfo, shard: str, position: Position, node: CheckpointNode | None
) -> str:
    """Describe the loss of a shard that is gone, and was not read to its end."""
    read = (
        f"whose last record arrived {_ago(info, node.arrival)}"
        if node is not None and node.arrival
        else "with no record read"
    )
    seen = f"stream {info.name!r}: shard {shard} is no longer listed and was read only to {position}, {read}"
    if not may_have_expired(info):
        return f"{seen}; {_young(info)}: {_DROPPED}"
    return f"{seen}; what came after is past the retention of {info.retention_hours} h at {iso_time(info.server_time)}"


def describe_gone_before_read(info: StreamInfo, shard: str, start: str, txid: int) -> str:
    """Describe the loss of a shard that went between the planning and the reading of its turn."""
    return _describe_gone(info, shard, f"{start} in txid {txid}", "what came after is lost")


def describe_gone_in_batch(info: StreamInfo, shard: str, position: str, end: str) -> str:
    """Describe the loss of a shard of a batch (`spark.read`) that went before its end was read."""
    return _describe_gone(info, shard, f"{position} to {end}", "what was left of it is lost")


def _describe_gone(info: StreamInfo, shard: str, place: str, lost: str) -> str:
    seen, at = (
        f"stream {info.name!r}: shard {shard} was to be read from {place}, but is",
        iso_time(info.server_time),
    )
    if not may_have_expired(info):
        return f"{seen} no longer listed at {at}; {_young(info)}: {_DROPPED}"
    return f"{seen} past the retention of {info.retention_hours} h and no longer listed at {at}: {lost}"


def describe_expired_in_batch(info: StreamInfo, shard: str, position: Position, known: int) -> str:
    """Describe the loss in a shard of a batch of which records expired before they were read.

    `known`: a time up to which none was lost.
    """
    horizon = info.server_time - info.retention_hours * HOUR_MS
    return (
        f"stream {info.name!r}, shard {shard}: reading has come to {position}, but the stream keeps only "
        f"{info.retention_hours} h: what arrived from {iso_time(known)} to {iso_time(horizon)} may have expired unread"
    )


def describe_partial_replay(key: ShardKey, pin: Pin) -> str:
    """Describe the loss in a batch that could not be replayed completely."""
    lost = count_noun(pin.lost, "record")
    return f"{key.source}, txid {pin.txid}: {lost} had left the stream when the batch was replayed"


def describe_unlisted(info: StreamInfo, option: str, shard: str, place: str) -> str:
    """Describe the loss of a shard that an option names but the stream does not have (any more)."""
    past = f"past the retention of {info.retention_hours} h, or " if may_have_expired(info) else ""
    return (
        f"stream {info.name!r}: {option} names shard {shard} at {place}, which is not listed at "
        f"{iso_time(info.server_time)}: it is {past}of another stream than this one, created at "
        f"{iso_time(info.created)}"
    )


def describe_deleted(stream: str, positions: Mapping[str, str]) -> str:
    """Describe the loss of a deleted stream; `positions` are those its shards were read to."""
    return f"stream {stream!r} was deleted: what was unread of it is lost{_format_positions(positions)}"


def describe_recreated(stream: str, before: int, now: int, positions: Mapping[str, str]) -> str:
    """Describe the loss of a stream that was deleted and recreated; `positions` are those its shards were read to."""
    return (
        f"stream {stream!r} was deleted and created again: the one that was read was created at {iso_time(before)}, "
        f"the one there now at {iso_time(now)}; what was unread of the first is lost{_format_positions(positions)}"
    )


def _format_positions(positions: Mapping[str, str]) -> str:
    some = sorted(positions.items())[:_NAMED]
    stood = "; ".join(f"shard {shard} stood at {position}" for shard, position in some)
    if len(positions) > _NAMED:
        stood += f"; and {len(positions) - _NAMED} more"
    return f" ({stood})" if stood else ""


def _ago(info: StreamInfo, then: int) -> str:
    return f"{(info.server_time - then) / 3_600_000:.1f} h ago ({iso_time(then)})"


def recreated_error(what: str, layout: Layout) -> StreamRecreatedError:
    """Return the error to raise for a recreated stream; `what` describes it."""
    return StreamRecreatedError(
        f"{what}. The positions in ZooKeeper ({layout.base}) mean nothing in it. Start with a new checkpointLocation, "
        "or set failOnDataLoss=false to continue with the new stream"
    )
