"""docs/trident-state.md, the examples of Storm's document "Trident State", as its reader would run them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_fixtures import _program
from servers import MemcachedServer, RedisServer
from stage import Stage

from kinesis_trident.trident import MemcachedState, RedisState

TEXT = (Path(__file__).parents[2] / "docs" / "trident-state.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SENTENCES = ["the cow jumped over the moon", "the man went to the store and bought some candy"]


@pytest.fixture
def own_memcached() -> Iterator[MemcachedServer]:
    """A memcached whose keys need no prefix, because nobody else writes any."""
    with MemcachedServer(_program("memcached")) as server:
        yield server


def test_the_document_runs(
    stage: Stage, make_stream: Callable[..., str], own_memcached: MemcachedServer
) -> None:
    def stream(name: str, texts: list[str]) -> Any:
        one = replace(stage, stream=make_stream(1), app=f"{stage.app}-{name}")
        one.put(texts)
        return one.load()

    memcached = "{}:{}".format(*own_memcached.address)
    names: dict[str, Any] = {
        # Of no module that workers could import.
        "__name__": "trident_state_document",
        "spark": stage.spark,
        "memcached": memcached,
        "database": stage.at("locations.db"),
        "checkpoints": stage.at("checkpoints"),
        "sentences": stream("sentences", SENTENCES),
        "more_sentences": stream("more", SENTENCES[:1]),
        "moves": stream("moves", ["1 Rome", "2 Kyoto", "3 Quito", "1 Paris"]),
        "visits": stream("visits", ["1", "1", "2", "9"]),
    }
    for block in BLOCKS:
        exec(block, names)
    truth = Counter(" ".join(SENTENCES).split())
    counts = MemcachedState.opaque(memcached).make_state({}, 0, 1)
    assert counts.multi_get([(word,) for word in truth]) == list(truth.values())
    assert names["in_memory"].make_state({}, 0, 1).multi_get([("the",), ("cow",)]) == [2, 1]
    visited = names["visited"].make_state({}, 0, 1)
    assert visited.multi_get([("Paris",), ("Kyoto",), (None,)]) == [2, 1, 1]


def test_the_first_example_of_the_topologies_page_runs(stage: Stage, redis_server: RedisServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trident.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    # A database of its own: the other examples count words under the same keys.
    database = f"{redis_server.url}/7"
    given = {
        'KinesisSpout(streamName="lines", applicationName="word-count", zookeeper__hosts="zk1:2181")': (
            "KinesisSpout(**options)"
        ),
        "redis://localhost": database,
        's3a://bucket/checkpoint"': stage.at("spark") + '", trigger={"availableNow": True}',
    }
    for written, ours in given.items():
        assert code.count(written) == 1
        code = code.replace(written, ours)
    stage.put(SENTENCES)
    exec(code, {"__name__": "trident_page", "spark": stage.spark, "options": stage.options()})
    truth = Counter(" ".join(SENTENCES).split())
    counts = RedisState.opaque(database).make_state({}, 0, 1)
    assert counts.multi_get([(word,) for word in truth]) == list(truth.values())
