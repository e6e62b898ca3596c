"""What a pin says of a turn that is read again, and the pin of what is left of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import msgspec
import xxhash

from checkpoint.nodes import Pin, Plan
from spout.deadletter import Letter
from spout.rows import TurnRows, digest_of
from tracker.keys import pack_in_parts
from tracker.records import RecordPosition, Run

__all__ = ["empty_turn", "holds_all_of", "left_of", "reach", "served_part"]


def reach(letters: Sequence[Letter]) -> str:
    """Which records of a turn are dead-lettered, as 16 hexadecimal digits.

    Two tasks may write at a time, and the one that is pinned perhaps reached further: with a file each, the other
    one cannot take its records away.
    """
    found = [(run.last, sum(batch.num_rows for batch in batches), gone) for run, batches, gone in letters]
    return xxhash.xxh3_64_hexdigest(repr(found).encode())


def empty_turn(plan: Plan, shard: str, epoch: int) -> Pin:
    """The pin of a turn of which nothing was run: its position and its due retries stay for a later batch."""
    at = plan.positions[shard]
    return Pin(
        txid=plan.txid,
        plan=plan.plan,
        epoch=epoch,
        start=at,
        end=at,
        last=None,
        count=0,
        fresh=0,
        digest=digest_of(()),
        xor=0,
    )


def holds_all_of(pin: Pin, other: Pin) -> bool:
    """Whether a reading of a turn holds every record of another one."""
    if other.closed and not pin.closed:
        return False
    if other.last is not None and (
        pin.last is None or RecordPosition.parse(pin.last) < RecordPosition.parse(other.last)
    ):
        return False
    pairs = zip_longest(pin.served, other.served, fillvalue=-1)
    return all(mine >= theirs for mine, theirs in pairs)


def left_of(
    pin: Pin, rows: TurnRows, epoch: int, runs: Sequence[Run], retried: Mapping[int, int], *, judged: bool
) -> Pin:
    """The pin of a turn some of whose records are gone: `rows` are left of it.

    `runs` are those taken up again; `retried` is how many records of each of them, by its index, are left.

    A record taken up again that is gone before an outcome was published was never judged: it counts as expired, and
    goes to the dead letter. Once the outcome is there, it holds for the gone ones too.
    """
    served, missing = list(pin.served), set(pin.missing)
    for index, count in retried.items():
        # Of a run not reached to its end, what is gone cannot be told from what is still to come.
        if not judged and count < served[index] == runs[index].count:
            served[index] = count
            missing.add(index)
    expired = sum(pin.served) - sum(served)
    return msgspec.structs.replace(
        pin,
        epoch=epoch,
        count=rows.count,
        fresh=rows.count - sum(retried.values()),
        digest=rows.digest(),
        xor=rows.xor(),
        positions=pack_in_parts(rows.keys()) if pin.positions else (),
        served=tuple(served),
        missing=tuple(sorted(missing)),
        lost=pin.lost + pin.count - rows.count - expired,
    )


def served_part(run: Run, served: int, through: str | None) -> Run:
    """The part of a run that a pinned turn delivered."""
    if served == run.count or through is None:
        return run
    if RecordPosition.parse(through) >= run.last_position:
        return run
    return msgspec.structs.replace(run, last=through, count=served)
