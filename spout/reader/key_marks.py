"""Marks the rows of a turn that wait for an earlier record of their key: it comes with another batch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kinesis_trident.spout.partition import ShardTurn
from kinesis_trident.spout.reader.rows import TurnRows


def mark_waiting(rows: TurnRows, turn: ShardTurn, served: Sequence[int], gone: Collection[int]) -> None:
    """Mark the rows that wait for what is not delivered before them, by an attempt of 0.

    Args:
        rows: of the turn.
        turn: what was to be delivered, with the keys of what comes again.
        served: how many records of each run that was due were found, as in a `Pin`.
        gone: the indexes of those of which records are gone: they are decided.
    """
    open_keys = set[str]()
    held: list[tuple[int, frozenset[str]]] = []
    for index, (run, is_dead) in enumerate(turn.due):
        count = served[index] if index < len(served) else -1
        if is_dead:
            continue
        held.append((max(count, 0), frozenset(open_keys)))
        if count < run.count and index not in gone:
            open_keys.update(run.keys)
    if turn.ahead or any(limit for _, limit in held) or open_keys:
        rows.mark(held, turn.ahead | open_keys)
