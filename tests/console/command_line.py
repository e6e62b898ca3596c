"""The command line as it is typed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.console.cli import main

__all__ = ["Command", "typed"]

Command = Callable[..., tuple[int, str, str]]


def typed(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`typed(...)("checkpoints", app, ...) -> exit code, output, errors`; the environment names ZooKeeper."""
    monkeypatch.setenv("KINESIS_TRIDENT_ZOOKEEPER", zookeeper.hosts)
    # As in a pipe: the processes of pytest-xdist, for one, have a width.
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        code = ended.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run
