"""Marks dead letters that were delivered again: when, in which batch that ended, and how. Pure.

Only whoever has marks to work on imports this: it loads numpy, and most commands of the console must answer at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import (
    DeadLetterRecord,
    DeadLettersNode,
    InflightNode,
    NotDone,
    Replay,
)
from kinesis_trident.tracker.position_keys import (
    KeyRanges,
    Keys,
    concatenate,
    find,
    merge_keys,
    pack_in_parts,
    sort_keys,
    unpack,
)

LISTED = 20
"""The number of dead letters per shard that ZooKeeper keeps for display; the dead letter has the records."""

_MOST_ENTRIES = 64
_MOST_RECORDS = 100_000
"""A shard's marks take up to 2 MB then; the oldest are forgotten, and their letters count as never replayed."""

Mask = npt.NDArray[np.bool_]


def find_replayed(node: DeadLettersNode | None) -> Keys:
    """Return the records whose newest letter was delivered again: they are done since, or in flight."""
    some = [one.positions for one in node.replays if one.outcome != "failed"] if node else []
    return merge_keys([unpack(*positions) for positions in some])


def mark_of_letter(node: DeadLettersNode, letter: DeadLetterRecord) -> Replay | None:
    """Return the replay of a listed letter; None if it was not delivered again."""
    named = KeyRanges(_pieces_of([letter]))
    for one in reversed(node.replays):
        # A letter of the batch in which a replay failed, or of a later one, is newer than that replay.
        later = one.outcome != "failed" or letter.txid < one.txid
        if later and named.cover(unpack(*one.positions)).any():
            return one
    return None


def mark_asked(node: DeadLettersNode, keys: Keys, now: int) -> DeadLettersNode:
    """Return a node after the query has taken in that these records are to be delivered again."""
    if not len(keys):
        return node
    before, asked, anew = list[Replay](), list[Replay](), keys
    for one in node.replays:
        if one.outcome == "failed":
            before.append(one)
            continue
        known = unpack(*one.positions)
        is_asked = find(keys, known)[1]
        before += _part(one, known, ~is_asked)
        # It keeps the batch in which they were done before, for the case that somebody takes this back.
        asked += _part(msgspec.structs.replace(one, time=now, outcome=""), known, is_asked)
        anew = anew[~find(known, anew)[1]]
    asked += _part(Replay(now, pack_in_parts(anew)), anew, np.ones(len(anew), np.bool_))
    return _with(node, [*before, *asked])


def asked_of(node: DeadLettersNode) -> Keys:
    """Return the dead letters that were asked for again, and are in flight."""
    return merge_keys([unpack(*one.positions) for one in node.replays if not one.outcome])


def take_back(
    node: DeadLettersNode, keys: Keys, inflight: InflightNode, turns: Mapping[int, Keys]
) -> DeadLettersNode:
    """Return a node after these are not to be delivered again after all: those out of flight are as before.

    They are letters, or were done in an earlier replay.
    """
    keys = keys[~are_in_flight(keys, inflight, turns)]
    if not len(keys):
        return node
    after: list[Replay] = []
    for one in node.replays:
        known = unpack(*one.positions)
        is_back = find(keys, known)[1]
        after += [one] if one.outcome else _part(one, known, ~is_back)
        if one.txid and not one.outcome:
            after += _part(msgspec.structs.replace(one, outcome="done"), known, is_back)
    return _with(node, after)


def merge_dead_letters(nodes: Sequence[DeadLettersNode]) -> DeadLettersNode:
    """Merge the nodes of dead letters of several shards, which retention has removed; there is at least one."""
    last = sorted((letter for node in nodes for letter in node.last), key=lambda letter: letter.time)
    merged = DeadLettersNode(
        count=sum(node.count for node in nodes), target=nodes[-1].target, last=tuple(last[-LISTED:])
    )
    # For the number of those that are left: nothing of these shards is in flight.
    ended = (one for node in nodes for one in node.replays if one.outcome)
    return _with(merged, sorted(ended, key=lambda one: one.time))


def settle_replays(
    node: DeadLettersNode,
    inflight: InflightNode,
    turns: Mapping[int, Keys],
    letters: Sequence[DeadLetterRecord],
    txid: int,
) -> DeadLettersNode:
    """Return a node after a batch: what was asked for and is no longer in flight is done, or a letter again.

    `turns`: the positions of the rows of the batches that `inflight` names; `letters`: those of this batch.
    """
    if not any(letters or not one.outcome for one in node.replays):
        return node
    failed, rows = KeyRanges(_pieces_of(letters)), _pending_in(inflight, turns)
    waiting = KeyRanges([*inflight.waiting, *inflight.dead])
    after: list[Replay] = []
    for one in node.replays:
        keys = unpack(*one.positions)
        again = failed.cover(keys)
        if one.outcome == "failed":
            after.append(one)
        else:
            # Records that were done can be dead-lettered again once somebody has moved the checkpoint back.
            is_open = waiting.cover(keys) | find(rows, keys)[1]
            waits = ~again if one.outcome == "done" else is_open & ~again
            after += _part(one, keys, waits)
            after += _part(msgspec.structs.replace(one, txid=txid, outcome="failed"), keys, again)
            after += _part(msgspec.structs.replace(one, txid=txid, outcome="done"), keys, ~waits & ~again)
    return _with(node, after)


def are_in_flight(keys: Keys, inflight: InflightNode | None, turns: Mapping[int, Keys]) -> Mask:
    """Return which of sorted keys are in flight."""
    if inflight is None or not len(keys):
        return np.zeros(len(keys), np.bool_)
    runs = KeyRanges([*inflight.waiting, *inflight.dead])
    return runs.cover(keys) | find(_pending_in(inflight, turns), keys)[1]


def _pending_in(inflight: InflightNode, turns: Mapping[int, Keys]) -> Keys:
    """Return the records that wait for their acks, sorted."""
    return merge_keys(
        [
            turns[run.txid][start:end]
            for run in inflight.pending
            for start, end in zip(run.open[::2], run.open[1::2], strict=True)
        ]
    )


def _pieces_of(letters: Sequence[DeadLetterRecord]) -> list[NotDone]:
    """Return the records that letters stand for; an earlier release has listed some that do not tell."""
    return [
        NotDone(str(named.first or ""), str(named.last), 1, "", str(named.prev) if named.prev else None)
        for letter in letters
        if (named := MessageId.find(letter.message_id)) is not None
    ]


def _part(one: Replay, keys: Keys, mask: Mask) -> Iterator[Replay]:
    if mask.any():
        yield one if mask.all() else msgspec.structs.replace(one, positions=pack_in_parts(keys[mask]))


def _with(node: DeadLettersNode, replays: Sequence[Replay]) -> DeadLettersNode:
    """Return a node with these replays; those that ended alike become one, and so do the oldest if they are many."""
    groups: dict[tuple[int, int, str], list[Replay]] = {}
    for at, one in enumerate(replays):
        old = at < len(replays) - _MOST_ENTRIES and one.outcome
        groups.setdefault((0, 0, one.outcome) if old else (one.time, one.txid, one.outcome), []).append(one)
    merged = []
    for some in groups.values():
        # What ended in two batches as a letter is there twice: it was two letters.
        keys = sort_keys(concatenate([unpack(*one.positions) for one in some]))
        merged.append(msgspec.structs.replace(some[-1], positions=pack_in_parts(keys)))
    while sum(one.count for one in merged) > _MOST_RECORDS and len(merged) > 1:
        merged.pop(0)
    return msgspec.structs.replace(node, replays=tuple(merged))
