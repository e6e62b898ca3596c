"""The command line as it is typed and the page as it is shown, against the shared ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import Command, typed

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.target import Target
from kinesis_trident.console.web.app import Site
from kinesis_trident.console.web.watcher import Watcher


@pytest.fixture
def command(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`command("checkpoints", app, ...) -> exit code, output, errors`, with ZooKeeper known from the environment."""
    return typed(zookeeper, capsys, monkeypatch)


@pytest.fixture
def site(zookeeper: EmbeddedZooKeeper) -> Iterator[Site]:
    """The page of all applications, which looks when a test says so."""
    watcher = Watcher(Target(ZooKeeperConfig(zookeeper.hosts), "/kinesis-trident", ""))
    yield Site(watcher)
    watcher.close()
