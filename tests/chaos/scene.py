"""What one schedule has at hand: its stream, its servers, its job, who acks, and who puts records."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from kazoo.client import KazooClient

from chaos.evidence import Nodes, Witness, created, read_parents, read_records
from chaos.lifetimes import Acker, Lifetimes
from chaos.observer import Evidence, Position, Record, Shard
from chaos.schedule import FAULTS, Schedule, kind_of
from chaos.trace import Traced, read_spark, read_written
from chaos.world import Disk, Keepers, SmallZooKeeper, World
from chaos.zookeeper_log import read_transactions

__all__ = ["RETRY_LIMIT", "SESSION_SECONDS", "Scene"]

RETRY_LIMIT = 1
SESSION_SECONDS = 6.0
"""Of the job's sessions with ZooKeeper, in place of 20 s; what lasts 30 s in the world lasts 9 s here."""

_WORDS = 8


class Scene:
    """A context manager; at its end no process of the job is left."""

    def __init__(self, schedule: Schedule, world: World, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.schedule = schedule
        self.world = world
        self.folder = folder
        self.stream = f"chaos-{schedule.seed}-{folder.parent.name}"
        self.rng = random.Random(schedule.seed)
        self.troubles: list[str] = []
        self.past: list[Record] = []
        """Of streams that were deleted."""
        self._number = 0
        self._tips: dict[str, int] = {}
        self._stack = ExitStack()
        self.disks: dict[str, Disk] = {}
        """By the fault that fills it."""

    def __enter__(self) -> Self:
        faults = {strike.fault for strike in self.schedule.strikes}
        for number, fault in enumerate(sorted(fault for fault in faults if "disk" in FAULTS[fault].needs)):
            self.disks[fault] = Disk(self.folder / f"disk-{number}")
            self._stack.callback(self.disks[fault].unmount)
        self.keepers = self._keepers()
        self.kinesis = self.world.kinesis.client()
        self.world.kinesis.create_stream(self.stream, self.schedule.shards)
        self._created = created(self.kinesis, self.stream)
        self.environment: dict[str, str] = {}
        options = self._options(faults)
        self.job = Lifetimes(
            self.folder,
            {
                "job": self.schedule.job,
                "redis": f"redis://127.0.0.1:{self.world.stores.proxy.port}",
                "cluster": "cluster" in self.schedule.needs,
                "checkpoint": str(self._place("Spark's checkpoint: disk full") / "checkpoint"),
                "options": options,
            },
            self.environment,
        )
        self._stack.callback(self.job.end)
        self.acker = Acker(self.folder, options) if self.schedule.job == "acks" else None
        if self.acker is not None:
            self._stack.callback(self.acker.kill)
        keeper = KazooClient(self.keepers.direct, timeout=10)
        keeper.start(timeout=60)
        self._stack.callback(keeper.close)
        self._stack.callback(keeper.stop)
        self.nodes = Nodes(keeper, self.stream)
        self.witness = Witness(
            self.schedule.job, self.nodes, self.folder, Path(options["deadLetter"]), self.world.stores.client
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _place(self, fault: str) -> Path:
        """Return the folder that a fault of a disk fills; one without bounds, if there is no such fault."""
        return self.disks[fault].folder if fault in self.disks else self.folder

    def _keepers(self) -> Keepers:
        if "ZooKeeper's disk full" in self.disks:
            server = SmallZooKeeper(self._place("ZooKeeper's disk full") / "zookeeper")
            return Keepers([self._stack.enter_context(server)])
        return self.world.keepers(three="ensemble" in self.schedule.needs)

    def _options(self, faults: set[str]) -> dict[str, str]:
        endpoint = self.world.plain_endpoint()
        if "tls" in self.schedule.needs:
            endpoint, authority = self.world.secure_endpoint()
            self.environment["AWS_CA_BUNDLE"] = str(authority)
        options = {
            "streamName": self.stream,
            "applicationName": self.stream,
            "region": "us-east-1",
            "endpointUrl": endpoint,
            "zookeeper.hosts": self.keepers.hosts,
            "zookeeper.sessionTimeout": f"{SESSION_SECONDS:g}s",
            "startingPosition": "TRIM_HORIZON",
            "retryLimit": str(RETRY_LIMIT),
            "retryBackoff": "10ms..20ms x2",
            "deadLetter": str(self._place("the dead letters: disk full") / "letters"),
            "minFetchPeriod": "10ms",
            "idlePollInterval": "100ms",
            "describeShardInterval": "500ms",
            # The task reads beyond what a look found.
            "maxRecordsPerFetch": "5",
        }
        if "the spool: disk full" in faults:
            options["retrySpool"] = str(self._place("the spool: disk full") / "spool")
        if self.schedule.job == "acks":
            # No step of the clock is as long.
            options |= {"ackMode": "explicit", "messageTimeout": "12h"}
        if "the stream is created again" in faults:
            options["failOnDataLoss"] = "false"
        return options

    def put(self) -> None:
        """Put a round of records."""
        numbers = range(self._number, self._number + self.schedule.records)
        self._number = numbers.stop
        records: list[Any] = [
            {
                "Data": json.dumps(
                    {"n": number, "word": f"word-{number % _WORDS}", "kind": kind_of(number)}
                ).encode(),
                "PartitionKey": str(number),
            }
            for number in numbers
        ]
        answer = self.kinesis.put_records(StreamName=self.stream, Records=records)
        if answer["FailedRecordCount"]:
            msg = f"records were not put: {answer}"
            raise RuntimeError(msg)
        for record in answer["Records"]:
            self._tips[record["ShardId"]] = int(record["SequenceNumber"])

    def recreate(self) -> None:
        """Delete the stream, and create it again."""
        self.past += read_records(self.kinesis, self.stream)
        self._tips.clear()
        self.world.kinesis.recreate(self.stream)
        self._created = created(self.kinesis, self.stream)

    def is_drained(self) -> bool:
        """Tell whether everything that was put is done, and no batch is under way."""
        at = {
            name: self.nodes.checkpoints.get(Shard(self._created, name), Position(-1)).sequence
            for name in self._tips
        }
        return at == self._tips and not self.nodes.unfinished and not self.nodes.open

    def trace(self) -> Traced:
        """Return what the job has left of its steps."""
        return Traced(
            home=f"/kinesis-trident/{self.stream}/{self.stream}@{self._created}",
            transactions=read_transactions(self.keepers.folders),
            lives=[(at, str(checkpoint)) for at, checkpoint in self.job.begun],
            entries=read_spark(checkpoint for _, checkpoint in self.job.begun),
            written=read_written(self.folder / "out") if self.schedule.job == "files" else None,
            records={
                one.number: (one.shard.name, one.sequence) for one in read_records(self.kinesis, self.stream)
            },
            parents=read_parents(self.kinesis, self.stream),
            tries=RETRY_LIMIT + 1,
        )

    def evidence(self) -> Evidence:
        """Return all that was seen, once the job is at its end."""
        seen, job = self.witness, self.schedule.job
        return Evidence(
            job=job,
            retry_limit=RETRY_LIMIT,
            records=[*self.past, *read_records(self.kinesis, self.stream)],
            looks=seen.looks,
            counts=seen.counts() if job == "counts" else None,
            rows=seen.rows() if job == "files" else None,
            acked=seen.acked() if job == "acks" else None,
            letters=seen.letters(),
            deliveries=seen.deliveries(),
            whole=seen.whole(),
            unfinished=self.nodes.unfinished,
            troubles=self.troubles,
        )
