"""The command line as it is typed, against the shared ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.console.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`command("checkpoints", app, ...) -> exit code, output, errors`, with ZooKeeper known from the environment."""
    monkeypatch.setenv("KINESIS_TRIDENT_ZOOKEEPER", zookeeper.hosts)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        code = ended.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run
