"""Counts exhausted runs of records in the dead letter, or stops the query for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode
from kinesis_trident.checkpoint.model.replays import LISTED
from kinesis_trident.checkpoint.zookeeper.command_line import command_line
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.spout.errors import ExhaustedError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.tracker.records import Run


def add_dead_letters(
    before: DeadLettersNode | None, letters: Sequence[DeadLetterRecord], target: str
) -> DeadLettersNode:
    """Return a shard's node of dead letters after more of them; `target`: where they go."""
    return DeadLettersNode(
        count=(before.count if before else 0) + sum(letter.count for letter in letters),
        target=target,
        last=(*(before.last if before else ()), *letters)[-LISTED:],
        replays=before.replays if before else (),
    )


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
