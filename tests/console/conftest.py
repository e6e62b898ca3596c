"""The command line as it is typed, against the shared ZooKeeper."""

from __future__ import annotations

import pytest
from command_line import Command, typed

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


@pytest.fixture
def command(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`command("checkpoints", app, ...) -> exit code, output, errors`, with ZooKeeper known from the environment."""
    return typed(zookeeper, capsys, monkeypatch)
