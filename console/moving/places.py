"""The options of a command that say where another system keeps its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

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


From = Annotated[
    System, typer.Option("--from", "--storm", help="The system that has read the stream until now.")
]
To = Annotated[
    System, typer.Option("--to", "--storm", help="The system that goes on: kcl, or one of the Storm spouts.")
]
Prefix = Annotated[
    str | None,
    typer.Option(help="Storm: zookeeperPrefix of kinesis-storm-spout, or zkNode of storm-kinesis."),
]
Topology = Annotated[str | None, typer.Option(help="Storm's topology name; kinesis-storm-spout only.")]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="kcl: the lease table, named as the KCL application; awslabs: the option kinesis.dynamodb.tableName.",
    ),
]
DynamoDBRegion = Annotated[
    str | None, typer.Option(help="The region of the table, if it is not the stream's.")
]
DynamoDBEndpoint = Annotated[
    str | None, typer.Option(help="The endpoint of DynamoDB, if it is not that of AWS.")
]
MetadataPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The option executor.metadata.path (qubole) or kinesis.metadataPath (awslabs), if it was set.",
    ),
]
SourceIndex = Annotated[
    int | None,
    typer.Option(min=0, help="qubole, awslabs: the source's index, if several of the query read the stream."),
]


@dataclass(frozen=True, slots=True)
class Places:
    """The options as they were given, None for those that were not.

    Raises:
        ConsoleError: one is missing, or belongs to another system.
    """

    system: From
    table: TableName = None
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="kcl: the initial position of an application that begins AT_TIMESTAMP."
        ),
    ] = None
    dynamodb_region: DynamoDBRegion = None
    dynamodb_endpoint: DynamoDBEndpoint = None
    checkpoint_location: Annotated[
        str | None, typer.Option(metavar="PATH", help="qubole, awslabs: checkpointLocation of the query.")
    ] = None
    metadata_path: MetadataPath = None
    source: SourceIndex = None
    prefix: Prefix = None
    topology: Topology = None
    storm_zookeeper: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="Storm's ZooKeeper, if it is another one.")
    ] = None

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
    def of_heir(
        cls,
        system: To,
        table: TableName = None,
        dynamodb_region: DynamoDBRegion = None,
        dynamodb_endpoint: DynamoDBEndpoint = None,
        prefix: Prefix = None,
        topology: Topology = None,
    ) -> Places:
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
        return cls(system, table, None, dynamodb_region, dynamodb_endpoint, prefix=prefix, topology=topology)

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
