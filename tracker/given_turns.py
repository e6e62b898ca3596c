"""The rows of a turn that wait for their acks, instead of being done with their batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import Kind, parse
from kinesis_trident.tracker.held_turns import AckWait, HeldRows, HeldTurn, Rows
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import Keys, counts, keys_of_texts
from kinesis_trident.tracker.records import NotDone, Run
from kinesis_trident.tracker.retry import Fates
from kinesis_trident.tracker.turns_by_txid import HeldTurns


class GivenTurn(NamedTuple):
    """The turn of records that wait for their acks until a deadline, in epoch milliseconds.

    `lost`: the number of its records that were in it at first, and that a replay no longer found.
    """

    txid: int
    keys: Keys
    deadline: int
    lost: int = 0


def give(shard: OpenShard, given: GivenTurn, again: Sequence[tuple[Run | None, int, str]]) -> OpenShard:
    """Return a shard once the rows of a turn wait for their acks: runs that came again, then new records.

    `again`: what came again of each run, as far as that is known, the number of its records, and the last one.

    Raises:
        OrderError: the rows are not the records of the runs, or are not after all that was delivered before.
    """
    txid, keys, deadline, lost = given
    segments, row = list[HeldRows](), 0
    # By their places: those that a replay no longer found are anywhere among them.
    ends = counts(keys, keys_of_texts([reached for *_, reached in again]), through=True)
    for (run, count, reached), end in zip(again, ends.tolist(), strict=True):
        if not count - lost <= end - row <= count:
            msg = f"{count} records up to {reached} came again in txid {txid}, which has {end - row} of them"
            raise OrderError(msg)
        if run is not None and row < end:
            delivery = AckWait(run.attempt + 1, deadline, run.failures)
            segments.append(HeldRows(range(row, end), run.prev, delivery))
        row = end
    high = shard.high
    if row < len(keys):
        if high is not None and (first := keys.at(row)) <= high:
            msg = f"{len(keys) - row} records from {first} on: expected them after {high}"
            raise OrderError(msg)
        before = None if high is None else str(high)
        segments.append(HeldRows(range(row, len(keys)), before, AckWait(1, deadline)))
        high = keys.at(-1)
    if not segments:
        return shard
    turn = HeldTurn.of(txid, keys, segments)
    return replace(shard, high=high, held=HeldTurns({**shard.held, txid: turn}))


def fail_given(
    shard: OpenShard, txid: int, failed: Sequence[NotDone], fates: Fates
) -> tuple[OpenShard, list[str]]:
    """Return a shard once records have failed in the batch that delivered them; and the last of those that are done.

    Those that a bolt holds wait for their acks like all others; the records that a replay no longer found cannot
    come again.
    """
    if txid not in shard.held:
        return shard, []
    keys = shard.held[txid].keys
    pieces = [piece for piece in failed if parse(piece.text).kind is not Kind.HELD]
    starts = counts(keys, keys_of_texts([piece.first for piece in pieces]), through=False)
    ends = counts(keys, keys_of_texts([piece.last for piece in pieces]), through=True)
    by_text = dict[str, list[Rows]]()
    for piece, start, end in zip(pieces, starts.tolist(), ends.tolist(), strict=True):
        by_text.setdefault(piece.text, []).append(np.arange(start, end))
    last = list[str]()
    for text, some in by_text.items():
        waits = shard.held[txid].choose(np.unique(np.concatenate(some)))
        if len(waits):
            shard, done = shard.fail_rows({txid: waits}, parse(text), fates)
            last += done
    return shard, last
