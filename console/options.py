"""The options that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from checkpoint.client import Sasl, Tls, ZooKeeperConfig
from checkpoint.migrate import StormStyle
from console.connection import Target

__all__ = [
    "Application",
    "AsJson",
    "Login",
    "Prefix",
    "Root",
    "Stream",
    "Style",
    "Topology",
    "Watch",
    "ZooKeeper",
    "target_of",
]

Application = Annotated[str, typer.Argument(metavar="APP", help="The option applicationName of the query.")]
ZooKeeper = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        envvar="KINESIS_TRIDENT_ZOOKEEPER",
        metavar="HOSTS",
        help="The option zookeeper.hosts of the query.",
    ),
]
Root = Annotated[str, typer.Option("--root", help="The option zookeeper.root of the query.")]
Stream = Annotated[str | None, typer.Option("--stream", help="One of the streams; all by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a stream and line.")]
Watch = Annotated[float, typer.Option("--watch", min=0, metavar="SECONDS", help="Look again, until Ctrl-C.")]

Style = Annotated[StormStyle, typer.Option("--storm", help="Which Storm spout.")]
Prefix = Annotated[
    str, typer.Option(help="zookeeperPrefix of kinesis-storm-spout, or zkNode of storm-kinesis.")
]
Topology = Annotated[str, typer.Option(help="Storm's topology name; kinesis-storm-spout only.")]


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to ZooKeeper; given before the command, because few need it."""

    timeout: float
    tls: Tls | None
    sasl: Sasl | None
    digest: str | None


def target_of(login: Login, zookeeper: str, root: str, application: str, stream: str | None) -> Target:
    """Put the options of a command together."""
    config = ZooKeeperConfig(
        zookeeper, session_timeout=login.timeout, tls=login.tls, sasl=login.sasl, digest=login.digest
    )
    return Target(config, root, application, stream)
