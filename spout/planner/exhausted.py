"""Counts exhausted runs of records as dead letters, marks those replayed, or stops the query for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode
from kinesis_trident.checkpoint.model.replays import (
    LISTED,
    are_in_flight,
    mark_asked,
    settle_replays,
    take_back,
)
from kinesis_trident.checkpoint.zookeeper.command_line import command_line
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.errors import ExhaustedError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.tracker.position_keys import NO_KEYS, Keys
from kinesis_trident.tracker.records import Run


def letters_after(
    before: DeadLettersNode | None,
    after: ShardState,
    letters: Sequence[DeadLetterRecord] = (),
    target: str = "",
    anew: Keys = NO_KEYS,
    cancelled: Keys = NO_KEYS,
    now: int = 0,
) -> DeadLettersNode | None:
    """Return a shard's dead letters once it is at `after`; None if they have not changed.

    `letters`: the new ones, which go to `target`. `anew`: the done records that somebody has asked for, which come
    again as of `now`; `cancelled`: those that do not.
    """
    inflight, turns = after.inflight, after.turns
    node = before
    if node is not None and node.replays and inflight is not None:
        node = take_back(node, cancelled, inflight, turns)
        node = settle_replays(node, inflight, turns, letters, inflight.txid)
    if letters or len(anew):
        # A request may name records that never were.
        node = node or DeadLettersNode(count=0, target="")
    if node is not None and letters:
        count, last = node.count + sum(letter.count for letter in letters), (*node.last, *letters)[-LISTED:]
        node = msgspec.structs.replace(node, count=count, target=target, last=last)
    if node is not None and len(anew):
        node = mark_asked(node, anew[are_in_flight(anew, inflight, turns)], now)
    return node if node is not before else None


def refuse_exhausted(dead: Mapping[str, tuple[Run, ...]], layout: Layout, options: SourceOptions) -> None:
    """Stop the query at an exhausted run with `onExhausted=fail`; `dead` is by shard.

    Raises:
        ExhaustedError: there is one.
    """
    if options.on_exhausted != "fail":
        return
    for shard, runs in sorted(dead.items()):
        run = runs[0]
        reason = run.failures[-1].reason if run.failures else "unknown"
        key = layout.key_of(shard)
        record = str(MessageId.of_run(key.source, run))
        words = (layout.application, "replay", record)
        command = command_line(options.zookeeper, layout.root, "dead-letters", *words)
        msg = (
            f"stream {key.stream!r}, shard {key.shard}, record {run.first or run.last}: failed "
            f"{count_noun(run.attempt, 'time')} (retryLimit {options.retry_limit}), last: {reason}. onExhausted=fail "
            "stops the query. Set deadLetter, or onExhausted=skip, and start again. Or fix the cause, put the record "
            f"back with `{command}`, and start again"
        )
        raise ExhaustedError(msg)
