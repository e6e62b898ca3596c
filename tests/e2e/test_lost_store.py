"""A topology whose Redis comes back empty after `kill -9`: it stops, and what it does then is its user's decision."""

from __future__ import annotations

import re
from typing import Any

import pytest
from harness import PATIENCE
from server_fixtures import _program
from servers import RedisServer
from stage import AVAILABLE_NOW, Stage, error_of

from kinesis_trident.trident import Count, RedisState, RunningTopology, TridentTopology


@pytest.mark.long
def test_a_redis_that_came_back_empty(stage: Stage) -> None:
    """And the same keys under another application, which are refused until it is told to take over.

    Without Spark the state's part is in tests/trident/test_lost_batches.py and test_ownership.py.
    """

    def start(app: str = "", **options: Any) -> RunningTopology:
        topology = TridentTopology(stage.spark)
        lines = topology.new_stream("lines", stage.load(applicationName=f"{stage.app}{app}"))
        text = lines.map(lambda tup: [tup["data"].decode()], "text string")
        # The new values of one are read, those of the other are not.
        for key, prefix in (("text", "text:"), ("partitionKey", "key:")):
            state = RedisState.opaque(server.url, keyPrefix=prefix, **options)
            stream = text if key == "text" else lines
            counts = stream.group_by([key]).persistent_aggregate(state, Count(), ["n"])
            if key == "text":
                counts.new_values_stream().transform(lambda rows: rows)
        running = topology.start(checkpointLocation=stage.at(f"spark{app}"), trigger=AVAILABLE_NOW)
        stage.queries += running.queries.values()
        return running

    def ran(app: str = "", **options: Any) -> None:
        running = start(app, **options)
        assert running.await_termination(PATIENCE)
        running.stop()

    def counts() -> dict[str, list[Any]]:
        return {
            prefix: RedisState.opaque(server.url, keyPrefix=prefix)
            .make_state({}, 0, 1)
            .multi_get([("a",), ("b",)])
            for prefix in ("text:", "key:")
        }

    with RedisServer(_program("redis-server")) as server:
        stage.put(["a"] * 50 + ["b"] * 10)
        ran()
        assert counts() == {"text:": [50, 10], "key:": [50, 10]}
        server.kill()
        stage.put(["a"] * 10)
        error = error_of(start().queries["lines"])
        assert "does not know of any batch of the state of" in error
        assert re.search("persistent_aggregate.Count. by text in text:, to which batch 1 was applied", error)
        assert counts() == {"text:": [None, None], "key:": [None, None]}
        ran(acceptLossUpTo=1)
        assert counts() == {"text:": [10, None], "key:": [10, None]}
        stage.put(["b"])
        ran()
        assert counts() == {"text:": [10, 1], "key:": [10, 1]}
        error = error_of(start("-other").queries["lines"])
        assert re.search(f"{stage.app}-other/.* belong to {stage.app}/{stage.stream}@", error)
        assert counts() == {"text:": [10, 1], "key:": [10, 1]}
