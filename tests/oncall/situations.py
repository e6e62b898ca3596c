"""What can happen to a query in a night: how it is made, what must be seen of it, and the runbook's way out."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import psutil
from botocore.exceptions import ClientError
from servers import kill_server

from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connected
from oncall.job import Job
from oncall.ways import Sight, Ways

__all__ = ["SITUATIONS", "Situation"]


class Situation:
    """One query and what happens to it. `begin` makes the fault, `mend` carries out `remedy`, words of the runbook.

    Attributes:
        name: of the query, too.
        code: the finding that must be seen.
        level: its level; a `note` is no alarm, and no alert fires.
        says: what the sentence must name, the cause, as a regular expression.
        see: the entry of docs/runbook.md.
        remedy: the words in it that `mend` carries out.
        options: of the source, besides.
        beside: what the specification does not say of it, so that its steps are not followed.
    """

    name: str
    code = ""
    level = ""
    says = ""
    see = ""
    remedy = ""
    options: Mapping[str, str] = MappingProxyType({})
    beside = ""

    def begin(self, job: Job, ways: Ways) -> None:
        """Make the fault."""

    def is_there(self, job: Job, ways: Ways) -> bool:
        """Tell whether the fault has come about: one of a rate takes its time."""
        return True

    def mend(self, job: Job, ways: Ways) -> None:
        """Do what the runbook says."""

    def is_seen(self, way: str, seen: list[Sight]) -> bool:
        """Tell whether a way says that this has happened; of what is no alarm, that it fires none."""
        if self.level == "note" and way == "alert":
            return not seen
        return any(
            one.level == self.level
            and one.code in ("", self.code)
            and (not one.said or re.search(self.says, one.said) or (way == "check" and self.level == "note"))
            for one in seen
        )


class Healthy(Situation):
    """Nothing happens to it."""

    name = "healthy"


class Poison(Situation):
    """A record that the function cannot take."""

    name = "poison"
    beside = "a dead letter is delivered again on request"
    code = "dead-letters"
    level = "warning"
    says = "ValueError: a poisoned order"
    see = "dead-letters"
    remedy = "`kinesis-trident dead-letters APP replay --all` delivers them again"

    def begin(self, job: Job, ways: Ways) -> None:
        job.poison.touch()
        job.put(1, poison=True)

    def mend(self, job: Job, ways: Ways) -> None:
        job.poison.unlink()
        code, printed = ways.command("dead-letters", job.app, "replay", "--all")
        assert code == 0, printed


class BadDeployment(Situation):
    """The function that was deployed last cannot take any record."""

    name = "bad deployment"
    beside = "a batch waits for somebody to look"
    code = "all-fail"
    level = "critical"
    says = "ValueError: a poisoned order"
    see = "all-fail"
    remedy = "Take back what was deployed last"
    # Such a batch waits for somebody to look, and uses up nothing meanwhile.
    options = MappingProxyType({"maxFailedShare": "0.5", "retryBackoff": "40s..40s x1"})

    def begin(self, job: Job, ways: Ways) -> None:
        job.poison.touch()
        job.put(200, poison=True)

    def mend(self, job: Job, ways: Ways) -> None:
        job.poison.unlink()


class SinkDown(Situation):
    """The server that the sink writes to is killed."""

    name = "sink down"
    code = "not-running"
    level = "critical"
    says = "ConnectionError"
    see = "not-running"
    remedy = "start the query again"

    def begin(self, job: Job, ways: Ways) -> None:
        kill_server(job.sink)

    def mend(self, job: Job, ways: Ways) -> None:
        job.sink.start()
        job.start()


class Behind(Situation):
    """More comes in than the query may read."""

    name = "behind"
    code = "falling-behind"
    level = "warning"
    says = "falls behind"
    see = "falling-behind"
    remedy = "a higher maxRecordsPerTrigger"
    options = MappingProxyType({"maxRecordsPerTrigger": "4"})

    def begin(self, job: Job, ways: Ways) -> None:
        job.rate = 40

    def is_there(self, job: Job, ways: Ways) -> bool:
        # Two minutes are what the runbook calls behind.
        return (ways.status(job.app)["lag_ms"] or 0) > 120_000

    def mend(self, job: Job, ways: Ways) -> None:
        job.stop()
        job.start(maxRecordsPerTrigger="10000")


class Stopped(Situation):
    """Somebody stops the query, and means it."""

    name = "stopped"
    code = "not-running"
    level = "note"
    says = "was stopped"
    see = "not-running"
    remedy = "start the query again"

    def begin(self, job: Job, ways: Ways) -> None:
        job.stop()

    def mend(self, job: Job, ways: Ways) -> None:
        job.start()


class DeletedStream(Situation):
    """The stream is deleted."""

    name = "deleted stream"
    beside = "a stream that is created again is another home"
    code = "not-running"
    level = "critical"
    says = "StreamMissingError"
    see = "StreamMissingError"
    remedy = "create it again and start with a new checkpointLocation"

    def begin(self, job: Job, ways: Ways) -> None:
        # What is unread is gone with the stream: no remedy brings it back.
        job.pause()
        job.until(job.is_whole, "all that was put is in the sink")
        job.client.delete_stream(StreamName=job.stream)

    def mend(self, job: Job, ways: Ways) -> None:
        job.client.create_stream(StreamName=job.stream, ShardCount=1)
        job.client.get_waiter("stream_exists").wait(StreamName=job.stream, WaiterConfig={"Delay": 1})
        job.start(anew=True)
        job.resume()


class Throttled(Situation):
    """Another reader takes what the shard gives: a page of 10 MiB blocks it for five seconds, again and again."""

    name = "throttled"
    code = "throttled"
    level = "warning"
    says = "throttles the reads of shard"
    see = "throttled"
    remedy = "Stop the other readers of the stream"

    def __init__(self) -> None:
        self._stop = threading.Event()

    def begin(self, job: Job, ways: Ways) -> None:
        threading.Thread(target=self._read, args=(job.client, job.stream), daemon=True).start()

    def _read(self, client: Any, stream: str) -> None:
        where = {"StreamName": stream, "ShardId": "shardId-000000000000"}
        first = client.get_shard_iterator(**where, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
        while not self._stop.wait(0.03):
            with suppress(ClientError):
                client.get_records(ShardIterator=first)

    def mend(self, job: Job, ways: Ways) -> None:
        self._stop.set()


class SessionLost(Situation):
    """The query does not reach ZooKeeper: its session ends, and so does it."""

    name = "session lost"
    code = "not-running"
    level = "critical"
    says = "does not reach ZooKeeper"
    see = "ZooKeeperUnavailableError"
    remedy = "start the query again"

    def begin(self, job: Job, ways: Ways) -> None:
        job.way.freeze()

    def mend(self, job: Job, ways: Ways) -> None:
        job.way.thaw()
        job.until(lambda: not job.runs, "the query that lost its session ends")
        job.start()


class Killed(Situation):
    """`kill -9`, as of a machine without memory, to the process that plans."""

    name = "killed"
    code = "not-running"
    level = "critical"
    says = "it was killed"
    see = "not-running"
    remedy = "start the query again"

    def begin(self, job: Job, ways: Ways) -> None:
        psutil.Process(ways.status(job.app)["run"]["pid"]).send_signal(signal.SIGKILL)

    def mend(self, job: Job, ways: Ways) -> None:
        job.until(lambda: not job.runs, "the query whose process was killed ends")
        job.start()


class FailingStart(Situation):
    """A scheduler starts the query again and again, and each start fails before it has an epoch."""

    name = "failing start"
    code = "start-fails"
    level = "critical"
    says = "StreamMissingError"
    see = "start-fails"
    remedy = "Do what the error says"

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._scheduler = threading.Thread()

    def begin(self, job: Job, ways: Ways) -> None:
        job.stop()
        self._scheduler = threading.Thread(target=self._schedule, args=(job,), daemon=True)
        self._scheduler.start()

    def _schedule(self, job: Job) -> None:
        while not self._stop.wait(1):
            job.start(streamName="of-another-region")
            job.until(lambda: not job.runs, "the start fails")

    def mend(self, job: Job, ways: Ways) -> None:
        self._stop.set()
        self._scheduler.join()
        job.start()


class MissingNode(Situation):
    """Somebody deletes a node of the query while it is stopped, and starts it."""

    name = "missing node"
    beside = "somebody deletes a node by hand"
    code = "not-running"
    level = "critical"
    says = "StateMissingError.*/checkpoints/shardId-000000000000"
    see = "StateMissingError"
    remedy = "put them back as they were"

    def __init__(self) -> None:
        self._path, self._data = "", b""

    def begin(self, job: Job, ways: Ways) -> None:
        job.stop()
        self._path = f"{ways.status(job.app)['home']}/checkpoints/shardId-000000000000"
        with connected(ZooKeeperConfig(ways.zookeeper)) as client:
            self._data, _ = client.get(self._path)
            client.delete(self._path)
        job.start()

    def mend(self, job: Job, ways: Ways) -> None:
        job.until(lambda: not job.runs, "the query whose node is missing ends")
        with connected(ZooKeeperConfig(ways.zookeeper)) as client:
            client.create(self._path, self._data)
        job.start()


SITUATIONS: tuple[Callable[[], Situation], ...] = (
    Healthy,
    Poison,
    BadDeployment,
    SinkDown,
    Behind,
    Stopped,
    DeletedStream,
    Throttled,
    SessionLost,
    Killed,
    FailingStart,
    MissingNode,
)
