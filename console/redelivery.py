"""Changes to failed records that people ask for, each with its note: deliver again, dead-letter now."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.console.changes import Change, carry_out, copy_of, note_request
from kinesis_trident.console.dead_letter_replay import MessageId, ask_for_replay
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.console.text import counted

__all__ = ["dead_letter_now", "deliver_again"]


def deliver_again(
    stores: Sequence[SourceStore], texts: Sequence[str], *, what: str, found: bool = False
) -> int:
    """Ask the query to deliver records again with a new count of attempts, and note that.

    Returns:
        The number of requested records.

    Raises:
        ConsoleError, CheckpointError: as `ask_for_replay`.
    """
    count = ask_for_replay(stores, [MessageId.parse(text) for text in texts], found=found)
    for store in stores:
        streams = streams_of(store)
        mine = [text for text in texts if text.partition("/")[0] in streams]
        if mine:
            more = f" and {len(mine) - 3} more" if len(mine) > 3 else ""
            note_request(store, f"{what}: {', '.join(mine[:3])}{more}")
    return count


def dead_letter_now(store: SourceStore, texts: Collection[str]) -> int:
    """Have the next start of a stopped query dead-letter runs that wait for a retry, named as by `waiting_ids`.

    Returns:
        The number of records.

    Raises:
        ConsoleError: a run is connected, a batch is not settled, or none of the runs waits here.
        CheckpointError: ZooKeeper does not answer, or a run has started meanwhile.
    """
    copy = copy_of(store)
    checkpoints, inflight, count = {}, {}, 0
    for shard, held in copy.inflight.items():
        source = store.layout.key_of(shard).source
        chosen = [run for run in held.waiting if f"{source}:{run.last}" in texts]
        if not chosen or shard not in copy.checkpoints:
            continue
        count += sum(run.count for run in chosen)
        checkpoints[shard] = copy.checkpoints[shard]
        inflight[shard] = msgspec.structs.replace(
            held,
            waiting=tuple(run for run in held.waiting if run not in chosen),
            dead=tuple(sorted((*held.dead, *chosen), key=lambda run: run.last_position)),
        )
    if not inflight:
        msg = f"{', '.join(sorted(texts)[:3])}: no such record waits for a retry any more. Look at the list again"
        raise ConsoleError(msg)
    what = f"dead-letter {counted(count, 'record')} now: {', '.join(sorted(texts)[:3])}"
    carry_out(store, Change(what, checkpoints, inflight), yes=True, force=False)
    return count
