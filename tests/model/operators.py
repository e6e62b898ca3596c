"""Requests of people beside streams that move: each is carried out once, or refused.

As `model.requests`, whose client acks and fails: what it fails waits for a week. A person has it delivered now or
dead-lettered, replays dead letters, and takes that back.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from kinesis_trident.checkpoint.errors import CheckpointError, StateMissingError
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.dead_letter_replay import find_listed, waiting_ids
from kinesis_trident.console.redelivery import (
    dead_letter_now,
    deliver_again,
    find_requests,
    take_back,
    withdraw,
)
from kinesis_trident.console.target import ConsoleError, Target, stores_of
from kinesis_trident.spout.engines import SparkProtocol
from kinesis_trident.spout.query_by_hand import QueryByHand
from model.requests import EVENTS, Requested

__all__ = ["Operated"]

_TARGET = Target(ZooKeeperConfig("memory:1"), "/kinesis-trident", "app")


class _Longest(random.Random):
    """Draws the longest wait: a record that comes before it was asked for."""

    def random(self) -> float:
        return 1.0


class Operated(Requested):
    """One application, a client, and a person at the command line.

    Attributes:
        asked: by message id, the deliveries that a person was promised, and those that are unknown.
        open: the ids of which a promised delivery has not come.
        buried: the ids that are to be dead letters, unless they are asked for again.
    """

    options: ClassVar = {
        **Requested.options,
        "messageTimeout": "168h",
        "retryBackoff": "168h..168h x1",
        "deadLetter": "",
        "onExhausted": "skip",
    }
    asks: ClassVar = ("say", "say", *["operate"] * 6)
    says: ClassVar = ("ack", "fail", "fail", "fail")
    length: ClassVar = (15, 40)
    together: ClassVar = False

    def __init__(self, rng: random.Random, protocols: Sequence[SparkProtocol]) -> None:
        super().__init__(rng, protocols=protocols)
        self.jitter = _Longest(1)
        self.asked: dict[str, Counter[str]] = defaultdict(Counter)
        self.open: set[str] = set()
        self.buried: set[str] = set()

    def came(self, message_id: str) -> None:
        """See `Requested.came`."""
        self.open.discard(message_id)
        self.buried.discard(message_id)

    def _recreate(self) -> None:
        # All that was asked for goes with the stream.
        if self.rng.random() < 0.2:
            super()._recreate()

    def _operate(self) -> None:
        session = self._session(0.3, *EVENTS)
        # What comes with a batch that is not settled waits in ZooKeeper.
        before = self.times.copy(), self.open.copy(), self.under_way
        try:
            stores = stores_of(session, _TARGET)  # type: ignore[arg-type]
            what = self.rng.choice(("now", "now", "bury", "replay", "replay"))
            if self.open and self.rng.random() < 0.8:
                what = "cancel"
            chosen = sorted(self.open) if what == "cancel" else list(self._choose(stores, what))
            if chosen:
                self._ask(stores, what, chosen, *before)
        except (ConsoleError, CheckpointError) as error:
            self.stats[f"look: {type(error).__name__}"] += 1
        finally:
            session.stop()

    def _choose(self, stores: Sequence[SourceStore], what: str) -> Iterator[str]:
        for store in stores:
            if what == "replay":
                # Those of several records are asked for by the folder, which is none here.
                letters, _ = find_listed(store.shards.dead_letters().values())
                some = [one for one in letters if MessageId.parse(one).is_one]
            else:
                some = waiting_ids(store)
            # Those of one shard are one request.
            source = MessageId.parse(self.rng.choice(some)).source if some else ""
            meant = [one for one in some if MessageId.parse(one).source == source]
            yield from (one for one in meant if self.rng.random() < 0.6)
            if meant:
                return

    def _ask(
        self,
        stores: Sequence[SourceStore],
        what: str,
        chosen: Sequence[str],
        times: Counter[str],
        promised: set[str],
        under_way: set[str],
    ) -> None:
        """Have a person ask for something; the rest is as it was before the person's look."""
        meant = sorted(self.open - self.gone) if what == "cancel" else self._records(chosen)
        do: dict[str, Callable[[], object]] = {
            "now": partial(self._deliver_again, stores, chosen),
            "replay": partial(self._deliver_again, stores, chosen),
            "bury": partial(self._bury, stores, chosen),
            "cancel": partial(self._cancel, stores),
        }
        try:
            said = "done" if do[what]() else "late"
        except (ConsoleError, StateMissingError):
            said = "refused"
        except CheckpointError:
            said = "unknown"
        self.stats[f"{what}: {said}"] += 1
        for one in meant:
            came, was_open = self.times[one] > times[one], one in promised or one in under_way
            if said == "refused":
                continue
            if what in ("now", "replay"):
                self.buried.discard(one)
                # One that was promised already comes once for both.
                self.asked[one]["unknown" if said != "done" or was_open else "promised"] += 1
                if said == "done" and not was_open and not came:
                    self.open.add(one)
            elif one in self.open and not came:
                self.open.discard(one)
                self.asked[one]["promised"] -= 1
                self.asked[one]["unknown"] += what == "bury" or said != "done"
            # One that is under way waits no more once its batch is settled: it may be failed, and wait, after that.
            if what == "bury" and said == "done" and not came and one not in under_way:
                self.buried.add(one)

    def _records(self, names: Sequence[str]) -> list[str]:
        """The records that these names of runs stand for."""
        runs = [MessageId.parse(name) for name in names]
        return sorted(one for one in self.delivered if any(run.takes(MessageId.parse(one)) for run in runs))

    def _deliver_again(self, stores: Sequence[SourceStore], chosen: Sequence[str]) -> int:
        return deliver_again(find_requests(stores, map(MessageId.parse, chosen)), what="again")

    def _bury(self, stores: Sequence[SourceStore], chosen: Sequence[str]) -> int:
        for store in stores:
            mine = set(waiting_ids(store)).intersection(chosen)
            if mine:
                dead_letter_now(store, mine)
        return 1

    def _cancel(self, stores: Sequence[SourceStore]) -> bool:
        """Return whether all that was asked for is surely withdrawn."""
        sure = True
        for store in stores:
            _, late = withdraw(store, lambda *_: True)
            sure = not (late or take_back(store, lambda *_: True)) and sure
        return sure

    def judge(self, life: QueryByHand) -> Iterator[str]:
        """See `Requested.judge`."""
        waiting = set(self._records(waiting_ids(life.store)))
        for one, times in self.times.items():
            if one in self.gone:
                continue
            asked = self.asked[one]
            least = 1 + asked["promised"]
            if not least <= times <= least + asked["unknown"] + self.doubts(one):
                yield f"{one} was delivered {times} times, after {dict(asked)}"
            if one in self.buried and one in waiting:
                yield f"{one} waits, though it is to be a dead letter"
