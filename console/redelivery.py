"""Changes to failed records that people ask for, each with its note: deliver again, dead-letter now."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.console.changes import note_request
from kinesis_trident.console.dead_letter_replay import MessageId, ask_for_replay
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.console.text import count_noun, some_of
from kinesis_trident.tracker.records import Run


def deliver_again(
    stores: Sequence[SourceStore],
    texts: Sequence[str],
    *,
    what: str,
    found: bool = False,
    again: bool = False,
) -> int:
    """Ask the query to deliver records again with a new count of attempts, and note that; as `ask_for_replay`.

    Returns:
        The number of requested records.

    Raises:
        ConsoleError, CheckpointError: as `ask_for_replay`.
    """
    count = ask_for_replay(stores, [MessageId.parse(text) for text in texts], found=found, again=again)
    for store in stores:
        streams = streams_of(store)
        mine = [text for text in texts if text.partition("/")[0] in streams]
        if mine:
            note_request(store, f"{what}: {some_of(mine, 3)}")
    return count


def dead_letter_now(store: SourceStore, texts: Collection[str]) -> int:
    """Ask the query to dead-letter runs that wait for a retry, named as by `waiting_ids`, and note that.

    The query does it with its next micro-batch, or once it is started.

    Returns:
        The number of records.

    Raises:
        ConsoleError: none of the runs waits here.
        CheckpointError: ZooKeeper does not answer.
    """
    asked: dict[str, tuple[Run, ...]] = {}
    for shard, held in store.shards.inflight().items():
        source = store.layout.key_of(shard).source
        chosen = tuple(run for run in held.waiting if f"{source}:{run.last}" in texts)
        if chosen:
            asked[shard] = chosen
    if not asked:
        msg = f"{', '.join(sorted(texts)[:3])}: no such record waits for a retry any more. Look at the list again"
        raise ConsoleError(msg)
    for shard, runs in asked.items():
        store.external.add(shard, ExternalNode(op="bury", records=tuple(run.last for run in runs)))
    count = sum(run.count for runs in asked.values() for run in runs)
    note_request(store, f"dead-letter {count_noun(count, 'record')} now: {', '.join(sorted(texts)[:3])}")
    return count
