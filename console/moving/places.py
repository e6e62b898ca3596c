"""The options of a command that say where another system keeps its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_trident.common.times import timestamp
from kinesis_trident.console.moving.foreign import System
from kinesis_trident.console.target import ConsoleError

STORM = (System.KINESIS_STORM_SPOUT, System.STORM_KINESIS)

_SPARK = ("checkpoint_location", "metadata_path", "source")
_OF_STORM = ("prefix", "topology", "storm_zookeeper")
_NEEDED = {
    System.KCL: "table",
    System.QUBOLE: "checkpoint_location",
    System.AWSLABS: "checkpoint_location",
    System.KINESIS_STORM_SPOUT: "prefix",
    System.STORM_KINESIS: "prefix",
}
_TAKEN = {
    System.KCL: ("table", "timestamp"),
    System.QUBOLE: _SPARK,
    System.AWSLABS: (*_SPARK, "table"),
    System.KINESIS_STORM_SPOUT: _OF_STORM,
    System.STORM_KINESIS: _OF_STORM,
}


@dataclass(frozen=True, slots=True)
class Places:
    """The options as they were given, None for those that were not.

    Raises:
        ConsoleError: one is missing, or belongs to another system.
    """

    system: System
    table: str | None = None
    timestamp: str | None = None
    dynamodb_region: str | None = None
    dynamodb_endpoint: str | None = None
    checkpoint_location: str | None = None
    metadata_path: str | None = None
    source: int | None = None
    prefix: str | None = None
    topology: str | None = None
    storm_zookeeper: str | None = None

    def __post_init__(self) -> None:
        taken, needed = _TAKEN[self.system], _NEEDED[self.system]
        for name in dict.fromkeys(one for several in _TAKEN.values() for one in several):
            if getattr(self, name) is not None and name not in taken:
                msg = f"{_flag(name)} does not belong to {self.system}, which takes {', '.join(map(_flag, taken))}"
                raise ConsoleError(msg)
        if not getattr(self, needed):
            msg = f"{self.system} needs {_flag(needed)}"
            raise ConsoleError(msg)

    @classmethod
    def of_heir(cls, system: System, **given: str | None) -> Places:
        """Return the options of a system that is to go on from positions that are written for it.

        Raises:
            ConsoleError: it cannot; or as the class.
        """
        if system not in (System.KCL, *STORM):
            msg = (
                f"checkpoints cannot be handed over to {system}, which keeps them with those of Spark. Start its "
                "query with a startingPosition of the positions that kinesis-trident checkpoints shows"
            )
            raise ConsoleError(msg)
        return cls(system, **given)  # type: ignore[arg-type]

    @property
    def time(self) -> int | None:
        """The time of `timestamp` in epoch milliseconds.

        Raises:
            ConsoleError: it is no time.
        """
        try:
            return None if self.timestamp is None else timestamp(self.timestamp)
        except ValueError as error:
            msg = f"--timestamp is {self.timestamp!r}. Expected: {error}"
            raise ConsoleError(msg) from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
