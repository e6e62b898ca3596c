"""Acks and fails that other processes send while streams move: each is applied once, or refused.

Between any two requests of the client to ZooKeeper, whose answers may be lost, a run takes acks in, is replaced, starts
anew, reads its stream together with another one, or finds that the stream was created again. And the client acks and
fails between any two requests of a run.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import ClassVar
from unittest import mock

from memory_streams import MemoryStreams

from kinesis_trident.checkpoint.errors import CheckpointError, HomeError
from kinesis_trident.spout import acks as acks_module
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.engines import SparkProtocol
from kinesis_trident.spout.errors import AckError, SpoutError
from kinesis_trident.spout.planner.settling.finished_batch import Evidence
from kinesis_trident.spout.query_by_hand import DeliveredRow, QueryByHand, SparkCheckpoint
from kinesis_trident.spout.testing import MemoryKinesis
from model.played import Played
from model.session import Dice, Session

__all__ = ["EVENTS", "Requested", "play"]

_CREATED = 1_600_000_000_000
EVENTS = ("batch", "batch", "batch", "restart", "takeover", "adopt", "recreate")


class _Process:
    """A process: something else may happen before each of its requests is answered."""

    def __init__(self, played: Requested, likely: float, *happens: str) -> None:
        self._played = played
        self._likely = likely
        self._happens = happens
        self.sessions: list[Session] = []

    def point(self, _what: object) -> None:
        """See `model.session.Process`."""
        self._played.happen_perhaps(self._likely, self._happens)
        for session in self.sessions[:]:
            session.deliver()

    def wrote(self) -> None:
        """See `model.session.Process`."""


class Requested(Played):
    """One application with `ackMode=explicit`, and one client that acks and fails what it is delivered.

    Attributes:
        delivered: by message id, the txids of its deliveries by attempt.
        said: by message id, what the client was told of its last request: `ack`, `fail`, `unknown`; none if it has
            asked for nothing since the last delivery.
        times: by message id, how often it was delivered.
        under_way: the message ids of the last batch, while it may not be settled.
        calm: no answer is lost any more, and nothing happens between two requests.
        failed: by message id, the number of fails that were taken, and of those whose answer is unknown.
        doubtful: the txid and shard of turns of which nobody knows whether Spark has committed them as they were read:
            these come again.
    """

    options: ClassVar = {
        "ackMode": "explicit",
        "messageTimeout": "24h",
        "retryLimit": "99",
        "failOnDataLoss": "false",
    }
    asks: ClassVar = ("say", "say", "say")
    says: ClassVar = ("ack", "fail")
    length: ClassVar = (5, 25)
    together: ClassVar = True

    def __init__(self, rng: random.Random, protocols: Sequence[SparkProtocol]) -> None:
        super().__init__(protocols=protocols)
        self.rng = rng
        self.kinesis = MemoryStreams("a", "b", clock=lambda: self.now)
        self.streams = "a"
        self.checkpoint = SparkCheckpoint()
        self.life: QueryByHand | None = None
        self.delivered: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.said: dict[str, str] = {}
        self.failed: dict[str, Counter[str]] = defaultdict(Counter)
        self.times = Counter[str]()
        self.under_way: set[str] = set()
        self.gone: set[str] = set()
        self.doubtful: set[tuple[int, str]] = set()
        self.violations: list[str] = []
        self.stats = Counter[str]()
        self._opened: list[Session] = []
        self._at_work: set[str] = set()
        self.calm = False
        self._acks: Acks | None = None

    def session(self) -> Session:
        """Open a session of a run."""
        self._opened.append(self._session(0.02, "say"))
        return self._opened[-1]

    def _session(self, likely: float, *happens: str) -> Session:
        lose = 0.0 if self.calm else likely / 2
        return Session(self.zookeeper, _Process(self, likely, *happens), Dice(self.rng, lose=lose))

    def happen_perhaps(self, likely: float, happens: Sequence[str]) -> None:
        """Let one of these happen, or nothing."""
        if not self.calm and self.rng.random() < likely:
            self.happen(self.rng.choice(happens))

    def happen(self, what: str) -> None:
        """Let this happen, unless its process is at work: that of the client, or that of the runs."""
        whose = "client" if what in self.asks else "runs"
        if whose in self._at_work:
            return
        self._at_work.add(whose)
        try:
            getattr(self, f"_{what}")()
        finally:
            self._at_work.remove(whose)

    def _begin(self, streams: str = "") -> None:
        """A life reads these streams, as a person starts it, who heeds what errors say."""
        # Starts that follow too soon on takeovers are refused.
        self.now += 400_000
        streams = streams or self.streams
        checkpoint = self.checkpoint if streams == self.streams else self.checkpoint.copy()
        try:
            life = self.start(checkpoint, judges=False, streamName=streams, **self.options)
        except HomeError:
            self.stats["adoption refused"] += 1
            return
        except SpoutError:
            # The stream was created again: the error names a new checkpointLocation.
            checkpoint = SparkCheckpoint()
            life = self.start(checkpoint, judges=False, streamName=streams, **self.options)
        self.streams, self.checkpoint, self.life = streams, checkpoint, life

    def _batch(self) -> None:
        life = self.life
        if life is None:
            return
        self.now += 2_000
        for session in self._opened:
            # What a watch has seen reaches a run also while it asks for nothing.
            session.deliver()
        try:
            if life.in_hand is None and life.plan() is None:
                self.under_way = set()
                return
            rows = life.rows()
            self._deliver(rows)
            life.commit()
        except (CheckpointError, SpoutError) as error:
            self.stats[f"batch: {type(error).__name__}"] += 1
            if not isinstance(error, CheckpointError):
                self.checkpoint = SparkCheckpoint()
            self._restart()

    def _deliver(self, rows: Sequence[DeliveredRow]) -> None:
        self.under_way = {row.message_id for row in rows}
        for row in rows:
            if row.txid not in self.delivered[row.message_id][row.attempt]:
                self.delivered[row.message_id][row.attempt].add(row.txid)
                self.said.pop(row.message_id, None)
                self.times[row.message_id] += 1
                self.came(row.message_id)

    def came(self, message_id: str) -> None:
        """A record was delivered, not only read again."""

    def _restart(self) -> None:
        if self.life is not None:
            self.life.end()
            self.life = None
        with suppress(CheckpointError):
            self._begin()

    def _takeover(self) -> None:
        before = self.life
        self.life = None
        with suppress(CheckpointError):
            self._begin()
        if before is not None:
            if before is not self.life:
                with suppress(CheckpointError, SpoutError, AssertionError):
                    before.plan()
            before.end()

    def _adopt(self) -> None:
        if self.life is not None and self.streams == "a":
            self.life.end()
            self.life = None
            self.stats["adoption"] += 1
            with suppress(CheckpointError):
                self._begin("a,b")
        if self.life is None:
            self._restart()

    def _recreate(self) -> None:
        if self.life is None or self.stats["recreation"] > 1:
            return
        self.stats["recreation"] += 1
        self.life.end()
        self.life = None
        created = _CREATED + self.stats["recreation"]
        self.kinesis.held["a"] = MemoryKinesis("a", created=created, clock=lambda: self.now)
        self.gone |= {message_id for message_id in self.delivered if message_id.startswith("a/")}
        self.put(2)
        self._restart()

    def put(self, count: int) -> None:
        for _ in range(count):
            self.put_to(self.rng.choice("ab"), 1)

    def put_to(self, stream: str, count: int) -> None:
        for _ in range(count):
            self.kinesis.put(stream, self.count)
            self.count += 1

    def _say(self) -> None:
        """Ack or fail what was delivered and waits for that."""
        waiting = sorted(one for one in self.delivered if one not in self.said and one not in self.gone)
        some = [one for one in waiting if self.rng.random() < 0.6]
        if some and self.together:
            self.say(some, self.rng.choice(self.says))
        for one in () if self.together else some:
            self.say([one], self.rng.choice(self.says))

    def say(self, ids: list[str], op: str) -> None:
        """Make a request of records that are in the same attempt."""
        attempt = max(self.delivered[ids[0]])
        ids = [one for one in ids if max(self.delivered[one]) == attempt]
        self.said |= dict.fromkeys(ids, "asked")
        # One whose answer is lost may come twice: it counts once where it says of which attempt it is.
        kept = attempt if self.rng.random() < 0.7 else None
        try:
            if self._acks is None:
                session = self._session(0.3, *EVENTS)
                with mock.patch.object(acks_module, "connect", return_value=session):
                    self._acks = Acks("app", {"zookeeper.hosts": "memory:1"})
            if op == "ack":
                self._acks.ack(ids, attempt=kept)
            else:
                self._acks.fail(ids, "no", attempt=kept)
            said = op
        except AckError:
            said = "refused"
        except CheckpointError:
            said = "unknown"
        self.stats[f"{op}: {said}"] += 1
        for one in ids:
            if op == "fail" and said in ("fail", "unknown"):
                self.failed[one][said] += 1
            # A refused one stands as it stood; what is delivered again meanwhile has another attempt.
            if max(self.delivered[one]) == attempt:
                self.said[one] = said
                if said == "refused":
                    del self.said[one]

    def play(self) -> None:
        """Play, and then let everything come to its end."""
        self.put(3)
        self._begin()
        for _ in range(self.rng.randint(*self.length)):
            if self.rng.random() < 0.4:
                self.put(self.rng.randint(0, 3))
            self.happen(self.rng.choice((*self.asks, *EVENTS)))
        self.calm = True
        self._acks = None
        self._restart()
        for _ in range(30):
            self._batch()
            left = sorted(
                one for one in self.delivered if self.said.get(one, "asked") in ("asked", "unknown")
            )
            for one in left:
                if one not in self.gone:
                    self.say([one], "ack")
        if self.life is None:
            self.violations.append(f"the last life of {self.streams} does not start")
            return
        self.violations += self.judge(self.life)

    def doubts(self, message_id: str) -> int:
        """Return how often a record comes again though nobody asks for it."""
        txids = set().union(*self.delivered[message_id].values())
        return sum((txid, message_id.partition(":")[0]) in self.doubtful for txid in txids)

    def judge(self, life: QueryByHand) -> Iterator[str]:
        """Yield what is not as promised at the end, in the last life."""
        for message_id, attempts in self.delivered.items():
            if message_id in self.gone:
                continue
            failed = self.failed[message_id]
            # One that comes again in the same attempt may have failed in the one before, too.
            least, most = 1 + failed["fail"] - self.doubts(message_id), 1 + failed["fail"] + failed["unknown"]
            if sorted(attempts) != list(range(1, len(attempts) + 1)) or not least <= len(attempts) <= most:
                yield (f"{message_id} was delivered in the attempts {sorted(attempts)}, after {dict(failed)}")
            if any(len(txids) > 1 for txids in attempts.values()) and not self.doubts(message_id):
                yield f"{message_id} was delivered twice in one attempt: {dict(attempts)}"
        for shard, node in life.store.shards.inflight().items():
            if "a@" in shard and str(self.kinesis.describe("a").created) not in shard:
                continue
            if node.size:
                yield f"{shard} has records in flight though each was acked: {node}"


def play(
    rng: random.Random, protocols: Sequence[SparkProtocol], kind: type[Requested] = Requested
) -> Requested:
    """Play a schedule; an error that no person is asked to act on is a violation."""
    played = kind(rng, protocols)
    find = Evidence._find_doubtful

    def find_and_note(evidence: Evidence) -> set[str]:
        found = find(evidence)
        played.doubtful |= {(evidence.plan.txid, evidence.layout.source_of(shard)) for shard in found}
        return found

    try:
        with mock.patch.object(Evidence, "_find_doubtful", find_and_note):
            played.play()
    except (CheckpointError, SpoutError) as error:
        played.violations.append(f"{type(error).__name__}: {error}")
    return played
