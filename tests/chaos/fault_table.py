"""Each fault by its name in a schedule."""

from __future__ import annotations

from chaos import kinesis_faults, process_faults, store_faults, zookeeper_faults
from chaos.faults import Fault

__all__ = ["FAULT_CLASSES"]

FAULT_CLASSES: dict[str, type[Fault]] = {
    "kill the driver": process_faults.KillDriver,
    "kill the JVM": process_faults.KillJvm,
    "kill the reader": process_faults.KillReader,
    "kill a Python worker": process_faults.KillWorker,
    "kill an executor": process_faults.KillExecutor,
    "kill who acks": process_faults.KillAcker,
    "wake the driver after a takeover": process_faults.Takeover,
    "ZooKeeper's leader killed": zookeeper_faults.KillLeader,
    "a ZooKeeper server lags": zookeeper_faults.Lag,
    "ZooKeeper down": zookeeper_faults.Down,
    "ZooKeeper's sessions expired": zookeeper_faults.ExpiredSessions,
    "ZooKeeper black-holed": zookeeper_faults.BlackHole,
    "ZooKeeper's disk full": zookeeper_faults.FullDisk,
    "Kinesis answers 500": kinesis_faults.Errors,
    "Kinesis throttles": kinesis_faults.Throttle,
    "iterators expire": kinesis_faults.ExpireIterators,
    "answers are cut": kinesis_faults.CutAnswers,
    "answers are slow": kinesis_faults.SlowAnswers,
    "TLS blips": kinesis_faults.TlsBlips,
    "a shard is split": kinesis_faults.Split,
    "two shards are merged": kinesis_faults.Merge,
    "the stream is created again": kinesis_faults.Recreate,
    "Redis restarted": store_faults.RestartRedis,
    "Redis failed over": store_faults.FailOver,
    "Spark's checkpoint: disk full": store_faults.FullCheckpoint,
    "the spool: disk full": store_faults.FullSpool,
    "the dead letters: disk full": store_faults.FullLetters,
    "the clock steps forward": store_faults.StepForward,
    "the clock steps back": store_faults.StepBack,
}
