"""Python twins of the examples in Storm's document "Trident State", with memcached and a database of one's own."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from servers import MemcachedServer
from stage import AVAILABLE_NOW, Stage

from trident import Count, Function, TridentCollector, TridentTopology, TridentTuple
from trident.state import QueryFunction, State, StateFactory, StateUpdater
from trident.stores.memcached import MemcachedState

SENTENCES = ["the cow jumped over the moon", "the man went to the store and bought some candy"]


class Split(Function):
    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        for word in tup["data"].decode().split(" "):
            collector.emit([word])


class LocationDB(State):
    """A home-grown database with the locations of users."""

    def __init__(self, path: str) -> None:
        self._path = path

    def begin_commit(self, txid: int | None) -> None:
        pass

    def commit(self, txid: int | None) -> None:
        pass

    def set_locations_bulk(self, user_ids: Sequence[int], locations: Sequence[str]) -> None:
        with closing(sqlite3.connect(self._path)) as db, db:
            db.executemany("REPLACE INTO locations VALUES (?, ?)", zip(user_ids, locations, strict=True))

    def bulk_get_locations(self, user_ids: Sequence[int]) -> list[str | None]:
        with closing(sqlite3.connect(self._path)) as db:
            query = f"SELECT user, place FROM locations WHERE user IN ({','.join('?' * len(user_ids))})"
            found = dict(db.execute(query, list(user_ids)).fetchall())
        return [found.get(user) for user in user_ids]


class LocationDBFactory(StateFactory):
    def __init__(self, path: str) -> None:
        self._path = path

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> LocationDB:
        return LocationDB(self._path)


class QueryLocation(QueryFunction[LocationDB, str | None]):
    def batch_retrieve(self, state: LocationDB, tuples: Sequence[TridentTuple]) -> list[str | None]:
        return state.bulk_get_locations([tup[0] for tup in tuples])

    def execute(self, tuple_: TridentTuple, result: str | None, collector: Any) -> None:
        collector.emit([result])


class LocationUpdater(StateUpdater[LocationDB]):
    def update_state(self, state: LocationDB, tuples: Sequence[TridentTuple], collector: Any) -> None:
        state.set_locations_bulk([tup[0] for tup in tuples], [tup[1] for tup in tuples])


def locations_db(path: str) -> str:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE locations (user INTEGER PRIMARY KEY, place TEXT)")
    return path


def finished(stage: Stage, topology: TridentTopology) -> None:
    running = topology.start(stage.at("spark"), trigger=AVAILABLE_NOW)
    stage.queries += running.queries.values()
    assert running.await_termination(120)


def test_streaming_word_count_in_memcached(stage: Stage, memcached_server: MemcachedServer) -> None:
    stage.put(SENTENCES)
    host, port = memcached_server.address
    state = MemcachedState.opaque(f"{host}:{port}", keyPrefix=f"{stage.app}/")
    topology = TridentTopology(stage.spark)
    (
        topology.new_stream("spout1", stage.load())
        .each(["data"], Split(), ["word"])
        .group_by(["word"])
        .persistent_aggregate(state, Count(), ["count"])
        .parallelism_hint(6)
    )
    finished(stage, topology)
    truth = Counter(" ".join(SENTENCES).split())
    counts = state.make_state({}, 0, 1).multi_get([(word,) for word in truth])
    assert dict(zip(truth, counts, strict=True)) == truth


def test_locations_are_updated_and_queried(stage: Stage) -> None:
    stage.put(["1 Paris", "2 Kyoto", "3 Quito"])
    factory = LocationDBFactory(locations_db(stage.at("locations.db")))
    topology = TridentTopology(stage.spark)
    locations = (
        topology.new_stream("locations", stage.load())
        .map(lambda tup: tup["data"].decode().split(" "), ["userid", "location"])
        .map(lambda tup: [int(tup["userid"]), tup["location"]], ["userid bigint", "location"])
        .partition_persist(factory, ["userid", "location"], LocationUpdater())
    )
    finished(stage, topology)
    users = stage.spark.createDataFrame([(3,), (4,), (1,)], "userid bigint")
    answer = topology.new_stream("users", users).state_query(
        locations, ["userid"], QueryLocation(), ["location"]
    )
    assert sorted(map(tuple, answer.df.collect())) == [(1, "Paris"), (3, "Quito"), (4, None)]


def test_a_static_state_is_queried_for_each_record(stage: Stage) -> None:
    path = locations_db(stage.at("locations.db"))
    LocationDB(path).set_locations_bulk([1, 2], ["Paris", "Kyoto"])
    stage.put([1, 2, 3])
    into = LocationDBFactory(locations_db(stage.at("seen.db")))
    topology = TridentTopology(stage.spark)
    locations = topology.new_static_state(LocationDBFactory(path))
    (
        topology.new_stream("myspout", stage.load())
        .map(lambda tup: [int(tup["data"])], ["userid bigint"])
        .state_query(locations, ["userid"], QueryLocation(), ["location"])
        .partition_persist(into, ["userid", "location"], LocationUpdater())
    )
    finished(stage, topology)
    assert into.make_state({}, 0, 1).bulk_get_locations([1, 2, 3]) == ["Paris", "Kyoto", None]
