"""What other processes say of a shard's records, taken into its tracker. Pure but for what it logs."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import NamedTuple

from checkpoint.nodes import ExternalNode
from tracker.errors import OrderError
from tracker.explicit import ExplicitTracker
from tracker.keys import unpack
from tracker.records import RecordPosition

__all__ = ["Tally", "take_in"]

log = logging.getLogger(__name__)


class Tally(NamedTuple):
    """What became of the records that were acked and failed by name, and of those that were not, in records.

    `late`: acked while they waited for a retry, which they then do not get. `done`: acked or failed although they were
    done, or had failed, before. `unknown`: beyond all that was ever read. `timed_out`: neither acked nor failed in
    time.
    """

    acked: int = 0
    failed: int = 0
    late: int = 0
    done: int = 0
    unknown: int = 0
    timed_out: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def take_in(
    shard: str,
    tracker: ExplicitTracker,
    asked: Mapping[str, ExternalNode],
    now: int,
    rng: random.Random,
    timeout: int = 0,
) -> tuple[Tally, dict[str, str]]:
    """Do what was asked, in order. `now` is in epoch milliseconds, `timeout` what a reset gives from now on.

    Returns:
        What became of the records; and of the requests whose positions cannot be read, by name, what is wrong. Of
        those nothing was done.
    """
    tally = Tally()
    unreadable: dict[str, str] = {}
    for name, node in asked.items():
        if node.op == "replay":
            refused = tracker.replay([RecordPosition.parse(text) for text in node.records], now)
            if refused:
                log.warning(
                    "shard %s: no such records were delivered: %s", shard, ", ".join(map(str, refused))
                )
            continue
        try:
            keys = unpack(node.positions)
        except OrderError as error:
            unreadable[name] = str(error)
            continue
        if node.op == "ack":
            told = tracker.ack_keys(keys)
            tally = tally.plus(Tally(told.changed, 0, told.late, told.known, told.unknown))
        elif node.op == "reset":
            told = tracker.reset_keys(keys, now + timeout)
            tally = tally.plus(Tally(done=told.known, unknown=told.unknown))
        else:
            told = tracker.fail_keys(keys, now, node.reason, rng)
            tally = tally.plus(Tally(0, told.changed, told.late, told.known, told.unknown))
        if told.unknown:
            log.warning(
                "shard %s: %d of the records to %s were never read: their positions are beyond %s",
                shard,
                told.unknown,
                node.op,
                tracker.high,
            )
    return tally, unreadable
