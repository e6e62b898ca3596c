"""examples/trident_word_count.py, run as its user runs it, with servers of its own and a Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fast_spark
import pytest
from servers import RedisServer

from kinesis_trident.trident.stores.redis import RedisState

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from trident_word_count import SENTENCES  # noqa: E402


def printed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    command = [sys.executable, str(EXAMPLES / "trident_word_count.py"), *arguments]
    with fast_spark.warm_python() as warm:
        environment = os.environ | warm
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=environment
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_word_counts_once(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer) -> None:
    """One of the sentences fails at first."""
    truth = Counter(" ".join(SENTENCES).split())
    most = [f"{count} {word}" for word, count in sorted(truth.items(), key=lambda pair: (-pair[1], pair[0]))]
    # A database of its own: without a prefix its keys would be among those of other tests.
    database = f"{redis_server.url}/6"
    assert printed(monkeypatch, "--redis", database) == most[:20]
    state = RedisState.opaque(database).make_state({}, 0, 1)
    assert state.multi_get([(word,) for word in truth]) == list(truth.values())
