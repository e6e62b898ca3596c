"""A schedule: a job, its records, and faults with the moments at which they strike. A seed determines it. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from chaos.observer import Kind

__all__ = ["FAULTS", "JOBS", "Event", "Job", "Moment", "Schedule", "Strike", "Traits", "draw", "kind_of"]

Job = Literal["counts", "acks", "files"]
"""An opaque word count in Redis through Trident; rows that another process acks; `reliable()` into files."""

JOBS: tuple[Job, ...] = ("counts", "acks", "files")
_JOB_WEIGHTS = (4, 2, 3)

Need = Literal["ensemble", "single", "cluster", "tls", "replica", "disk"]
"""What a fault needs of the world: three ZooKeeper servers, or a single one, ..."""


class Event(StrEnum):
    """What a fault waits for in a batch."""

    PLANNED = "is planned"
    READ = "is read"
    PROCESSED = "is processed"
    SETTLED = "is settled"


@dataclass(frozen=True)
class Moment:
    """An event of the `batches`-th batch after the fault before was over; a later one, if that passed unseen."""

    event: Event
    batches: int

    def __str__(self) -> str:
        return f"when batch +{self.batches} {self.event}"


@dataclass(frozen=True)
class Traits:
    """What the dice have to know of a kind of fault.

    `last`: nothing can follow it. `weight`: how often it is drawn, compared with others.
    """

    jobs: tuple[Job, ...] = JOBS
    needs: frozenset[Need] = frozenset()
    weight: int = 2
    last: bool = False


def _needs(*needs: Need, jobs: tuple[Job, ...] = JOBS, weight: int = 2) -> Traits:
    return Traits(jobs, frozenset(needs), weight)


FAULTS: dict[str, Traits] = {
    "kill the driver": Traits(weight=4),
    "kill the JVM": Traits(weight=3),
    "kill the reader": Traits(weight=3),
    "kill a Python worker": Traits(weight=3),
    "kill an executor": _needs("cluster", weight=3),
    "kill who acks": Traits(("acks",), weight=6),
    "wake the driver after a takeover": Traits(weight=4),
    "ZooKeeper's leader killed": _needs("ensemble", weight=3),
    "a ZooKeeper server lags": _needs("ensemble", weight=3),
    "ZooKeeper down": Traits(weight=3),
    "ZooKeeper's sessions expired": Traits(),
    "ZooKeeper black-holed": Traits(),
    "ZooKeeper's disk full": _needs("disk", "single"),
    "Kinesis answers 500": Traits(),
    "Kinesis throttles": Traits(),
    "iterators expire": Traits(),
    "answers are cut": Traits(),
    "answers are slow": Traits(),
    "TLS blips": _needs("tls"),
    "a shard is split": Traits(),
    "two shards are merged": Traits(),
    "the stream is created again": Traits(last=True),
    "Redis restarted": Traits(("counts",), weight=6),
    "Redis failed over": _needs("replica", jobs=("counts",), weight=4),
    "Spark's checkpoint: disk full": _needs("disk"),
    "the spool: disk full": _needs("disk", jobs=("files",), weight=4),
    "the dead letters: disk full": _needs("disk"),
    "the clock steps forward": Traits(),
    "the clock steps back": Traits(),
}
"""All of them; `chaos.faults` has each by its name."""


@dataclass(frozen=True)
class Strike:
    """A fault at its moment."""

    fault: str
    moment: Moment

    def __str__(self) -> str:
        return f"{self.fault}, {self.moment}"


@dataclass(frozen=True)
class Schedule:
    """What one seed plays.

    `rounds` of `records` each are put as batches are settled; more of them, until the last fault has struck.
    """

    seed: int
    job: Job
    shards: int
    rounds: int
    records: int
    strikes: tuple[Strike, ...]

    @property
    def needs(self) -> frozenset[Need]:
        """Return what all faults together need."""
        return frozenset(need for strike in self.strikes for need in FAULTS[strike.fault].needs)

    @property
    def is_followed(self) -> bool:
        """Whether the specification says what its job does: one stream, and nobody acks from outside."""
        faults = {strike.fault for strike in self.strikes}
        return self.job != "acks" and "the stream is created again" not in faults

    def __str__(self) -> str:
        return f"{self.job}: {'; '.join(map(str, self.strikes))}"


def draw(seed: int, *, faults: Collection[str] = FAULTS.keys(), most: int = 4) -> Schedule:
    """Return the schedule of a seed, with 2 to `most` of the faults."""
    rng = random.Random(seed)
    (job,) = rng.choices(JOBS, _JOB_WEIGHTS)
    fitting = [name for name in FAULTS if name in faults and job in FAULTS[name].jobs]
    # The longer, the rarer.
    counts = range(min(2, most), most + 1)
    (count,) = rng.choices(counts, [*reversed(range(1, len(counts) + 1))])
    names: list[str] = []
    while fitting and len(names) < count:
        name = rng.choices(fitting, [FAULTS[one].weight for one in fitting])[0]
        names.append(name)
        needs = {need for one in names for need in FAULTS[one].needs}
        fitting = [
            one for one in fitting if one != name and not {"ensemble", "single"} <= needs | FAULTS[one].needs
        ]
    names.sort(key=lambda name: FAULTS[name].last)
    strikes = tuple(Strike(name, Moment(rng.choice(list(Event)), rng.randint(1, 2))) for name in names)
    return Schedule(seed, job, rng.randint(2, 3), rng.randint(3, 5), rng.randint(10, 40), strikes)


def kind_of(number: int) -> Kind:
    """Return what becomes of a record: of each twenty one fails for good, and two at their first delivery."""
    return {7: Kind.BAD, 3: Kind.FLAKY, 12: Kind.FLAKY}.get(number % 20, Kind.GOOD)
