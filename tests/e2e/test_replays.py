"""A batch is replayed in place when an operation, an aggregator or a store in an executor asks for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from breakable import Breakable
from harness import PATIENCE
from servers import RedisServer
from stage import AVAILABLE_NOW, Stage

from kinesis_trident.trident import Aggregator, Count, FailedException, Function, State, TridentTopology
from kinesis_trident.trident.state import StateFactory, StateType, StateUpdater
from kinesis_trident.trident.stores.redis import RedisState


def first(marker: str) -> bool:
    """Tell whether nobody was here before, in any process."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Text(Function):
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def execute(self, tup, collector):  # type: ignore[no-untyped-def]
        if first(self.marker):
            raise FailedException("the model is being loaded")
        collector.emit([tup["data"].decode()])


class All(Aggregator):
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def init(self, batch_id, collector):  # type: ignore[no-untyped-def]
        return []

    def aggregate(self, value, tup, collector):  # type: ignore[no-untyped-def]
        return [*value, tup[0]]

    def complete(self, value, collector):  # type: ignore[no-untyped-def]
        if first(self.marker):
            raise FailedException("the index is being built")
        collector.emit([" ".join(sorted(value))])


class Here(State):
    """A place in the driver."""

    def begin_commit(self, txid: int | None) -> None:
        self.txid = txid

    def commit(self, txid: int | None) -> None:
        assert txid == self.txid


class HereFactory(StateFactory):
    driver_local: ClassVar[bool] = True
    kind = StateType.OPAQUE

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Here:
        return Here()


class Call(StateUpdater[Here]):
    """Calls a function with the txid and what came."""

    def __init__(self, function: Callable[[int | None, list[str]], None]) -> None:
        self.function = function

    def update_state(self, state: Here, tuples: Sequence[Any], collector: Any) -> None:
        self.function(state.txid, sorted(tup[0] for tup in tuples))


def test_a_store_is_lost_in_the_middle_of_a_batch(stage: Stage, redis_server: RedisServer) -> None:
    """Both counts are in one store. It goes away between them, and is back when the batch is replayed."""
    said: list[tuple[str, int | None]] = []
    texts: dict[int | None, list[str]] = {}
    prefix = uuid.uuid4().hex
    with Breakable("127.0.0.1", redis_server.port) as proxy:

        def begun(txid: int | None, _: list[str]) -> None:
            said.append(("begun", txid))
            proxy.mend()

        def between(txid: int | None, _: list[str]) -> None:
            said.append(("between", txid))
            if said.count(("between", 1)) == 1 and txid == 1:
                proxy.break_()

        def ended(txid: int | None, all_: list[str]) -> None:
            said.append(("ended", txid))
            [joined] = all_
            texts[txid] = joined.split()

        def counts(url: str, name: str) -> RedisState:
            return RedisState.opaque(url, keyPrefix=f"{prefix}{name}/", requestRetries=1)

        def run() -> None:
            topology = TridentTopology(stage.spark)
            text = topology.new_stream("lines", stage.load()).each(
                ["data"], Text(stage.at("loaded")), ["text"]
            )
            text.partition_persist(HereFactory(), ["text"], Call(begun))
            there = f"redis://127.0.0.1:{proxy.port}"
            text.group_by("text").persistent_aggregate(counts(there, "one"), Count(), "n")
            text.partition_persist(HereFactory(), ["text"], Call(between))
            # Its new values are read, so its update runs as what Spark holds.
            new = text.group_by("text").persistent_aggregate(counts(there, "two"), Count(), "n")
            whole = new.new_values_stream().aggregate(All(stage.at("built")), ["all"], inputs=["text"])
            whole.partition_persist(HereFactory(), ["all"], Call(ended))
            running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
            stage.queries += running.queries.values()
            assert running.await_termination(PATIENCE)

        stage.put(["a", "b", "a"])
        run()
        stage.put(["b", "c"])
        run()
    # The first attempt ends in `each`, before the verdict, the second in the store, the third in the aggregator.
    lost, built, good = ["begun", "between"], ["begun", "between"], ["begun", "between", "ended"]
    assert said == [(what, 1) for what in (*lost, *built, *good)] + [(what, 2) for what in good]
    assert texts == {1: ["a", "b"], 2: ["b", "c"]}
    for name in ("one", "two"):
        found = counts(redis_server.url, name).make_state({}, 0, 1).multi_get([("a",), ("b",), ("c",)])
        assert found == [2, 2, 1], name
