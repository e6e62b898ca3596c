"""Topologies that count, of each kind of spout into each kind of state, while their processes are killed.

All run in one Spark application (`chaos_driver.py`), so that one death is the death of all. What else goes wrong is
the same for all, too: records fail at their first delivery and come back in a later batch, and of those that a killed
batch held, some are past retention when it is replayed. `spout=transactional` promises to stop at either, so it is
spared both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import psutil
from chaos.evidence import created, read_parents
from chaos.trace import Traced, follow_job, read_spark
from chaos.zookeeper_log import Transaction, read_transactions
from chaos_driver import CHECKPOINTS, FAILS_FIRST
from gates import PINNING, Gates, Stop
from harness import layout_of
from kazoo.client import KazooClient
from lives import HERE, Lives, command_of, kill_tree, parent_of, workers_of
from matrix import SPOUTS, STATES

from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.testing import ScriptedKinesis
from kinesis_trident.trident.build.checks import EXACTLY_ONCE
from kinesis_trident.trident.stores.redis import RedisState

__all__ = ["CRASHES", "Cell", "Chaos", "Crash", "Outcome", "Point", "Victim", "deviations", "refusals"]

RETRY_LIMIT = 3
WORDS = [f"word-{n}" for n in range(8)]
SHARDS = 2


class Victim(StrEnum):
    """The process that is killed with SIGKILL."""

    DRIVER = "driver"
    """The driver, with every process below it; then the job is started again."""

    EXECUTOR = "executor"
    """An executor's JVM and its Python workers; Spark starts another one."""

    WORKER = "Python worker"
    """One Python process of an executor; Spark tries its task again."""


class Point(StrEnum):
    """The step of a batch at which the victim is killed."""

    PINNING = PINNING
    BEFORE = "before the state's commit"
    DURING = "during the state's commit"
    AFTER = "after the state's commit"
    SPARK = "before Spark's commit"


@dataclass(frozen=True)
class Crash:
    """A way to die."""

    victim: Victim
    point: Point

    @property
    def reads_again(self) -> bool:
        """Tell whether the batch is read from Kinesis once more, so that it may miss what has expired meanwhile.

        Not if only a Python worker dies, as the tuples stand in the executor; nor if the batch had finished and an
        executor dies.
        """
        return self.victim is Victim.DRIVER or (
            self.victim is Victim.EXECUTOR and self.point not in {Point.SPARK, Point.PINNING}
        )


CRASHES = (
    *(Crash(victim, point) for victim in Victim for point in Point if point is not Point.PINNING),
    Crash(Victim.EXECUTOR, Point.PINNING),
)
"""All of them. While it is read, an executor dies and its worker does not: it pins what another attempt reads too."""


@dataclass(frozen=True)
class Cell:
    """A kind of spout with a kind of state."""

    spout: str
    state: str


@dataclass(frozen=True)
class Outcome:
    """The effect of a crash on a cell: the counts of each word of a round, and the true ones."""

    cell: Cell
    crash: Crash
    truth: Mapping[str, int]
    counted: Mapping[str, int]

    @property
    def exact(self) -> bool:
        """Tell whether every word was counted right."""
        return self.truth == self.counted


def deviations(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the contradictions to the documented matrix: a wrong count where it promises none, or none elsewhere."""
    found = []
    for cell in dict.fromkeys(one.cell for one in outcomes):
        wrong = [one for one in outcomes if one.cell == cell and not one.exact]
        if (cell.spout, cell.state) in EXACTLY_ONCE:
            found += [
                f"{one.cell}, {one.crash}: counted {one.counted}, to be counted {one.truth}" for one in wrong
            ]
        elif not wrong:
            found.append(f"{cell}: documented as not exact, and every count was right")
    return found


def refusals(traces: Mapping[str, Traced]) -> dict[str, str]:
    """Return what the specification does not have of the steps of topologies, of which each has taken some."""
    followed = {spout: follow_job(trace) for spout, trace in traces.items()}
    return {spout: refused for spout, (steps, refused) in followed.items() if refused or not steps}


class Topology:
    """A job as a test knows it; its stream and application are called `name`."""

    def __init__(
        self, spout: str, name: str, kinesis: ScriptedKinesis, keeper: KazooClient, redis: str
    ) -> None:
        self.spout = spout
        self.name = name
        self._kinesis = kinesis
        self._keeper = keeper
        self._redis = redis
        self._last: dict[str, int] = {}
        self._records: dict[int, tuple[str, int]] = {}
        self._trimmed: list[tuple[float, tuple[int, ...]]] = []
        kinesis.create_stream(name, SHARDS)
        self._client = kinesis.client()

    @property
    def expires(self) -> bool:
        """Tell whether records may fail or expire: `spout=transactional` would stop."""
        return self.spout != "transactional"

    def gates(self, point: Point) -> list[str]:
        """Those that it comes to at a point: one, or one for each state."""
        return (
            [self.name]
            if point in {Point.PINNING, Point.SPARK}
            else [f"{self.name}.{kind}" for kind in STATES]
        )

    def put(self) -> tuple[Counter[str], Counter[str], int]:
        """Put a round of records: its words, those that `trim` takes away, and its argument."""
        texts = [(shard, word) for shard in range(SHARDS) for _ in range(2) for word in WORDS]
        if self.expires:
            texts += [(1, word + FAILS_FIRST) for word in WORDS[:2]]
        words, sequences = self._put(texts)
        return words, Counter(WORDS), sequences[len(WORDS) - 1]

    def put_good(self, words: Sequence[str]) -> Counter[str]:
        """Put records into the first shard, none of which fails: what there is to count."""
        return self._put([(0, word) for word in words])[0]

    def _put(self, texts: Sequence[tuple[int, str]]) -> tuple[Counter[str], list[int]]:
        """Put records all at once, by shard: their words and sequence numbers."""
        shards = self._client.list_shards(StreamName=self.name)["Shards"]
        answer = self._client.put_records(
            StreamName=self.name,
            Records=[
                {
                    "Data": text.encode(),
                    "PartitionKey": text,
                    "ExplicitHashKey": shards[shard]["HashKeyRange"]["StartingHashKey"],
                }
                for shard, text in texts
            ],
        )
        assert not answer["FailedRecordCount"]
        for record in answer["Records"]:
            self._last[record["ShardId"]] = int(record["SequenceNumber"])
            self._records[len(self._records)] = (record["ShardId"], int(record["SequenceNumber"]))
        words = Counter(text.rstrip(FAILS_FIRST) for _, text in texts)
        return words, [int(record["SequenceNumber"]) for record in answer["Records"]]

    def trim(self, through: int) -> None:
        """The first records of the first shard are past retention."""
        first = self._kinesis.shards(self.name)[0]
        gone = (n for n, (shard, at) in self._records.items() if shard == first and at <= through)
        self._trimmed.append((time.time(), tuple(gone)))
        self._kinesis.trim(self.name, first, through)

    def drained(self) -> bool:
        """Tell whether everything is done, and no batch is in hand."""
        done = {shard: int(node.checkpoint or 0) for shard, node in self.store.shards.checkpoints().items()}
        return (
            done == self._last
            and not any(node.waiting or node.dead for node in self.store.shards.inflight().values())
            and self.settled == max(self.store.batches.txids(), default=self.settled)
        )

    def pinned(self, txid: int) -> bool:
        """Tell whether the first shard's part of a batch is pinned."""
        shard = self._kinesis.shards(self.name)[0]
        return bool(self.store.batches.get_pins(txid, [shard]))

    @property
    def settled(self) -> int:
        """The last batch that is over."""
        node = self.store.batches.settled()
        return node.txid if node else 0

    @property
    def read(self) -> int:
        """Return how many records the source says it has delivered."""
        return sum(node.read for node in self.store.shards.checkpoints().values())

    def counts(self, kind: str) -> Counter[str]:
        """Return what stands in a state."""
        factory = getattr(RedisState, kind)(self._redis, keyPrefix=f"{self.name}/{kind}/")
        values = factory.make_state({}, 0, 1).multi_get([(word,) for word in WORDS])
        return Counter({word: value or 0 for word, value in zip(WORDS, values, strict=True)})

    def trace(self, transactions: Sequence[Transaction], begun: Sequence[float], checkpoint: Path) -> Traced:
        """Return what it has left of its steps."""
        return Traced(
            home=f"/kinesis-trident/{self.name}/{self.name}@{created(self._client, self.name)}",
            transactions=transactions,
            lives=[(at, str(checkpoint)) for at in begun],
            entries=read_spark([checkpoint]),
            written=None,
            records=self._records,
            parents=read_parents(self._client, self.name),
            tries=RETRY_LIMIT + 1,
            trimmed=self._trimmed,
        )

    @cached_property
    def store(self) -> SourceStore:
        """Its source in ZooKeeper."""
        return SourceStore(self._keeper, layout_of(self._client, self.name))


class Chaos:
    """A job of a topology for each spout, from its first life to its last.

    Args:
        folder: of the job; its name makes those of the streams and keys unique.
    """

    def __init__(
        self, folder: Path, kinesis: ScriptedKinesis, keeper: KazooClient, hosts: str, redis: str
    ) -> None:
        self._topologies = [
            Topology(spout, f"{folder.name}-{spout}", kinesis, keeper, redis) for spout in SPOUTS
        ]
        self._gates = Gates(folder / "gates")
        self._job = Lives(folder, HERE / "chaos_driver.py")
        self._begun: list[float] = []
        self._asked = {
            "folder": str(folder),
            "redis": redis,
            "topologies": {one.name: one.spout for one in self._topologies},
            "options": {
                "region": "us-east-1",
                "endpointUrl": kinesis.endpoint_url,
                "zookeeper.hosts": hosts,
                "startingPosition": "TRIM_HORIZON",
                "retryLimit": str(RETRY_LIMIT),
                "retryBackoff": "10ms..20ms x2",
                "minFetchPeriod": "10ms",
                # The task reads beyond what a look found.
                "maxRecordsPerFetch": "5",
            },
        }

    def outcomes(self, crashes: Sequence[Crash]) -> list[Outcome]:
        """Let the job go through crashes, one after the other: what every cell has counted in each."""
        try:
            self._live(crashes[0])
            # A first round, so that every word has a value.
            for one in self._topologies:
                one.put()
            self._drain()
            nexts = [*crashes[1:], crashes[-1]]
            return [
                one for crash, then in zip(crashes, nexts, strict=True) for one in self._crash(crash, then)
            ]
        finally:
            self._job.kill()

    def traces(self, zookeeper: Path) -> dict[str, Traced]:
        """Return what is left of the steps of each topology, by its spout, once the job has ended.

        Args:
            zookeeper: the folder of its server.
        """
        transactions = read_transactions([zookeeper])
        folder = Path(self._asked["folder"]) / CHECKPOINTS
        return {
            one.spout: one.trace(transactions, self._begun, folder / one.name) for one in self._topologies
        }

    def _crash(self, crash: Crash, then: Crash) -> list[Outcome]:
        """Put records, let the victim die with them in hand, let all of it end: what every cell has counted."""
        counted = {(one, kind): one.counts(kind) for one in self._topologies for kind in STATES}
        read = {one: one.read for one in self._topologies}
        after = {gate: one.settled for one in self._topologies for gate in one.gates(crash.point)}
        self._gates.arm(crash.point, after, visits=2 if crash.point is Point.PINNING else 1)
        truth = self._put_and_pin_twice() if crash.point is Point.PINNING else self._put_and_kill(crash, then)
        self._drain()
        for one in self._topologies:
            assert one.read - read[one] == truth[one].total(), (one.name, crash)
        return [
            Outcome(Cell(one.spout, kind), crash, truth[one], _grown(before, one.counts(kind)))
            for (one, kind), before in counted.items()
        ]

    def _put_and_kill(self, crash: Crash, then: Crash) -> dict[Topology, Counter[str]]:
        """Return what is to be counted of a round whose batch dies."""
        put = {one: one.put() for one in self._topologies}
        stops = [self._stopped(gate) for one in self._topologies for gate in one.gates(crash.point)]
        truth = {}
        for one, (words, expired, through) in put.items():
            if one.expires:
                one.trim(through)
            truth[one] = words - expired if one.expires and crash.reads_again else words
        if crash.victim is Victim.DRIVER:
            self._job.kill()
            self._live(then)
        else:
            self._kill(crash, stops)
        return truth

    def _put_and_pin_twice(self) -> dict[Topology, Counter[str]]:
        """Return what is to be counted of a round whose batch is read by two attempts, the later one finding more.

        None of the records fails: what does has the batch computed again, from what is pinned.
        """
        truth = {one: one.put_good(WORDS * 2) for one in self._topologies}
        first = {one: self._stopped(one.name) for one in self._topologies}
        for one in self._topologies:
            truth[one] += one.put_good(WORDS[:2])
        self._orphan_workers()
        for one in self._topologies:
            self._stopped(one.name, visit=1)
        for one, stop in first.items():
            self._gates.open(one.name)
            self._job.until(lambda one=one, stop=stop: one.pinned(stop.txid), "the first attempt's pin")  # type: ignore[misc]
        for one in self._topologies:
            self._gates.open(one.name, visit=1)
        return truth

    def _live(self, crash: Crash) -> None:
        """Start the job, with an executor of its own process if that is to die; such a start takes longer."""
        master = "local-cluster[1,6,768]" if crash.victim is Victim.EXECUTOR else "local[6,4]"
        self._begun.append(time.time())
        self._job.launch(self._asked | {"master": master}, {"KT_GATES": str(self._gates.folder)})

    def _drain(self) -> None:
        for one in self._topologies:
            self._job.until(one.drained, f"{one.name} is drained")

    def _stopped(self, gate: str, visit: int = 0) -> Stop:
        self._job.until(lambda: self._gates.stopped(gate, visit), f"somebody stops at {gate}")
        stop = self._gates.stopped(gate, visit)
        assert stop is not None
        return stop

    def _kill(self, crash: Crash, stops: Sequence[Stop]) -> None:
        if crash.victim is Victim.EXECUTOR:
            for executor in self._below("CoarseGrainedExecutorBackend"):
                kill_tree(executor)
        elif crash.point is Point.SPARK:
            daemons = self._below("pyspark.daemon")
            for worker in workers_of(daemons):
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
        else:
            for pid in {stop.pid for stop in stops}:
                psutil.Process(pid).kill()
        if crash.point is Point.SPARK:
            for one in self._topologies:
                self._gates.open(one.name)

    def _orphan_workers(self) -> None:
        """Kill the executor, and not its Python workers: they go on with what they have in hand."""
        executors = self._below("CoarseGrainedExecutorBackend")
        # Dead before it could end the workers together with itself.
        for daemon in self._below("pyspark.daemon"):
            if parent_of(daemon) in executors:
                daemon.kill()
        for executor in executors:
            executor.kill()

    def _below(self, what: str) -> list[psutil.Process]:
        """The processes of the job whose command line says `what`."""
        found = [one for one in self._job.processes() if any(what in word for word in command_of(one))]
        assert found, what
        return found


def _grown(before: Counter[str], now: Counter[str]) -> Counter[str]:
    return Counter({word: now[word] - before[word] for word in WORDS})
