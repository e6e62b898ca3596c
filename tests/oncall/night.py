"""Plays the night: twelve queries in health, then eleven faults at once; notes who says what, and after how long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError

import fast_spark
from breakable import Breakable
from chaos.trace import follow_job
from chaos.zookeeper_log import read_transactions
from job_environment import WITHOUT_CHMOD
from job_session import job_session
from lives import eventually
from server_programs import find
from servers import RedisServer

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.embedded.java import ensure_java
from kinesis_trident.spout.testing import ScriptedKinesis
from oncall.job import Job
from oncall.programs import Console, Prometheus
from oncall.situations import SITUATIONS, Situation
from oncall.ways import WAYS, Sight, Ways

__all__ = ["LATE", "Case", "play"]

LATE = 60.0
"""Seconds after which a fault must be seen by all ways."""

_GIVE_UP = 120.0
_PATIENCE = 300.0
_PAGE_MIB = 11
_TICKS = 2
_LOOPBACK = "127.0.0.1"


@dataclass
class Case:
    """A situation, its query, and what came of it. Times are seconds.

    Attributes:
        seen: by way, after how long it said the cause.
        beside: what else was said to be wrong meanwhile.
        well: after how long from the remedy on nothing was wrong, by all ways; None if that never came.
        whole: the sink had all that was put, each once, at the end.
        refused: of its steps, what the specification does not have.
    """

    situation: Situation
    job: Job
    seen: dict[str, float] = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)
    well: float | None = None
    whole: bool = False
    refused: str = ""
    _begun: float | None = None
    _mended: float | None = None
    _asked: bool = False

    @property
    def wrong(self) -> list[str]:
        """Return what is wrong with how the night looked at this query."""
        found = [f"{way} never said so" for way in WAYS if way not in self.seen]
        found += [f"{way} said so after {took:.0f} s" for way, took in self.seen.items() if took > LATE]
        found += [f"a false alarm: {one}" for one in sorted(self.beside)]
        if self.well is None:
            found.append("the remedy did not help")
        if not self.whole:
            found.append("the sink is not whole")
        if not self.situation.code:
            found = [one for one in found if "false" in one or "sink" in one]
        return [*found, f"the specification has no such step: {self.refused}"] if self.refused else found

    def begin(self, ways: Ways) -> None:
        """Make the fault."""
        self.situation.begin(self.job, ways)
        self._asked = True
        self._begin_to_count(ways)

    def look(self, ways: Ways) -> None:
        """Note what the ways say by now, and go on to the remedy, or to the end."""
        seen = ways.look(self.job.app)
        now = time.monotonic()
        if self._mended is not None:
            self.job.revive()
            if self.well is not None:
                self.beside |= _alarms(seen)
            elif not _alarms(seen):
                self.well = now - self._mended
            elif now - self._mended > _PATIENCE:
                self.beside |= _alarms(seen)
                self._mended = float("inf")
            return
        if not self._asked:
            self.beside |= _alarms(seen)
            return
        if self._begun is None:
            self._begin_to_count(ways)
            return
        for way in WAYS:
            if way not in self.seen and self.situation.is_seen(way, seen[way]):
                self.seen[way] = now - self._begun
        self.beside |= {
            f"{way}: {one.level} {one.code or one.said}"
            for way, sights in seen.items()
            for one in sights
            if one.level != "note" and one.code not in ("", self.situation.code)
        }
        if len(self.seen) == len(WAYS) or now - self._begun > _GIVE_UP:
            self.situation.mend(self.job, ways)
            self._mended = time.monotonic()

    def _begin_to_count(self, ways: Ways) -> None:
        if self.situation.is_there(self.job, ways):
            self._begun = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Tell whether the query is well again, or is given up."""
        return self.well is not None or self._mended == float("inf")


@dataclass
class Night:
    """The servers, the queries, and who puts records, until the end of the block."""

    cases: list[Case]
    ways: Ways

    def _refresh(self) -> None:
        self.ways.refresh([case.job.app for case in self.cases])

    def is_calm(self) -> bool:
        """Tell whether nothing is wrong anywhere, by any way."""
        try:
            self._refresh()
        except HTTPError:
            # The page has not looked at all of them yet.
            return False
        return not any(_alarms(self.ways.look(case.job.app)) for case in self.cases)

    def look(self, at: Sequence[Case], until: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Look at queries, again and again."""
        while not until():
            self._refresh()
            for case in at:
                before = set(case.seen), case.well
                case.look(self.ways)
                if before != (set(case.seen), case.well):
                    said = {way: round(took) for way, took in case.seen.items()}
                    say(
                        f"{case.situation.name}: {said}"
                        + ("" if case.well is None else f", well after {case.well:.0f} s")
                    )


@contextmanager
def _night(folder: Path, names: Sequence[str]) -> Iterator[Night]:
    """Start everything, and wait until all queries are healthy by all ways."""
    with ExitStack() as stack:
        # Twelve processes that plan: Spark gives each ten seconds to start.
        os.environ |= stack.enter_context(fast_spark.warm_python()) | {"JAVA_HOME": str(ensure_java())}
        zookeeper = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        kinesis = stack.enter_context(ScriptedKinesis())
        sinks = [
            stack.enter_context(RedisServer(_program("redis-server"), appendonly="yes")) for _ in range(2)
        ]
        where = ("--zookeeper", zookeeper.hosts)
        page = stack.enter_context(Console(["ui", "--port", "{port}", *where], "/"))
        exporter = stack.enter_context(
            Console(["metrics", "--listen", f"{_LOOPBACK}:{{port}}", *where], "/metrics")
        )
        prometheus = stack.enter_context(Prometheus(_program("prometheus"), exporter.url))
        settings = {
            **WITHOUT_CHMOD,
            "spark.sql.shuffle.partitions": "1",
            # Else the entries of the first batches are gone when the steps are followed.
            "spark.sql.streaming.minBatchesToRetain": "100000",
            "spark.driver.memory": "1g",
        }
        spark = job_session("local[4]", folder, settings)
        stack.callback(spark.stop)
        cases = []
        for make in SITUATIONS:
            situation = make()
            if names and situation.name.replace(" ", "-") not in names:
                continue
            way = stack.enter_context(Breakable(_LOOPBACK, zookeeper.port))
            sink = sinks[situation.name == "sink down"]
            cases.append(Case(situation, Job(spark, situation.name, kinesis, sink, way, folder)))
        ways = Ways(zookeeper.hosts, page.url, f"{exporter.url}/metrics", prometheus.url)
        ended = threading.Event()
        putting = threading.Thread(target=_put, args=([case.job for case in cases], ended))
        stack.callback(putting.join)
        stack.callback(ended.set)
        for case in cases:
            if case.situation.name == "throttled":
                case.job.put(_PAGE_MIB, filler=2**20 - 100)
            case.job.put(1)
            case.job.start(**case.situation.options)
            case.job.until(lambda job=case.job: job.revive() or job.rows(), "the first rows")
        putting.start()
        night = Night(cases, ways)
        eventually(night.is_calm, "health of all queries")
        yield night


def _put(jobs: Sequence[Job], ended: threading.Event) -> None:
    second = 0
    while not ended.wait(1 / _TICKS):
        second += 1
        for job in jobs:
            job.put(job.rate // _TICKS)


def _program(name: str) -> Path:
    program = find(name)
    if program.path is None:
        msg = f"{name} is missing: {program.how}"
        raise RuntimeError(msg)
    return program.path


def _alarms(seen: Mapping[str, list[Sight]]) -> set[str]:
    return {
        f"{way}: {one.level} {one.code or one.said}"
        for way, sights in seen.items()
        for one in sights
        if one.level != "note"
    }


def play(folder: Path, minutes: float, say: Callable[[str], None], names: Sequence[str] = ()) -> list[Case]:
    """Play a night with so many minutes of health before the faults; `say` is told what comes.

    `names`: of the queries; all of them by default.
    """
    with _night(folder, names) as night:
        say(f"all {len(night.cases)} queries are healthy; they stay so for {minutes:g} minutes")
        ends = time.monotonic() + minutes * 60
        night.look(night.cases, lambda: time.monotonic() > ends, say)
        say(
            f"alarms so far: {sorted(one for case in night.cases for one in case.beside) or 'none'}; the faults begin"
        )
        for case in night.cases:
            if case.situation.code:
                case.begin(night.ways)
        night.look(night.cases, lambda: all(case.is_over for case in night.cases if case.situation.code), say)
        for case in night.cases:
            case.job.pause()
        for case in night.cases:
            with suppress(AssertionError):
                case.job.until(case.job.is_whole, "all that was put is in the sink")
                case.whole = True
        transactions = read_transactions([folder / "zookeeper"])
        for case in night.cases:
            if not case.situation.beside:
                steps, case.refused = follow_job(case.job.trace(transactions))
                say(f"{case.situation.name}: {steps} steps are followed{', one is not' * bool(case.refused)}")
        return night.cases
