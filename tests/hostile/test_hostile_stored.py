"""What other programs write into databases and states: right values, or an error that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from answering import Server
from botocore.config import Config
from exploring import explore, explores
from hostility import hostile, mutated_json, read_bounded
from hypothesis import given

from kinesis_trident.trident.errors import ForeignValueError, StateError
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores.dynamodb import DynamoDBByteStore
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer
from kinesis_trident.trident.stores.sql import SqlByteStore
from kinesis_trident.trident.stores.storemap import StoreMap
from kinesis_trident.trident.windowing.updater import (
    CountWindowUpdater,
    OfCombiner,
    TimeWindowUpdater,
)
from kinesis_trident.trident.windowing.windows import Arrival, advance, closed_windows

sa = pytest.importorskip("sqlalchemy")


@pytest.mark.parametrize("text", [True, False])
def test_rows_of_other_types(text: bool, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 's.db'}")
    store = SqlByteStore(engine, "sqlite s", "t", text=text)
    store.set_many(["a"], [b"[1,2,null]"])
    serializer = JsonSerializer(StateType.OPAQUE) if text else MsgpackSerializer(StateType.OPAQUE)
    for value in (
        "5",
        str(10**12),
        str(2**63 - 1),
        "-1",
        "1.5",
        "'[1,2'",
        "x'5b312cff'",
        "x''",
        "'\u0663'",
        "1e308",
    ):
        for expires in ("NULL", "'soon'", "1e308", "-1", "x'00'", "'9'"):
            with engine.begin() as connection:
                connection.execute(sa.text(f"UPDATE t SET value = {value}, expires = {expires}"))
            found = read_bounded(
                lambda: StoreMap(store, serializer).multi_get([("a",)]),
                100,
                ForeignValueError,
                "sqlite s, table t",
                "key 'a'",
                least=100_000,
            )
            assert found is None or found == [None]


ITEMS = [
    {"Responses": {"t": [{"key": {"S": "a"}, "value": {"S": "[1,2,null]"}}]}, "UnprocessedKeys": {}},
    {"Responses": {"t": [{"key": {"S": "a"}, "value": {"B": "WzEs"}, "expires": {"N": "99999999999"}}]}},
    {"Responses": {}, "UnprocessedKeys": {"t": {"Keys": [{"key": {"S": "a"}}]}}},
]


@explores
def test_answers_of_dynamodb(server: Server) -> None:
    client = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        config=Config(retries={"total_max_attempts": 1}),
    )
    store = DynamoDBByteStore(client, "t", parallel=1)
    state = StoreMap(store, JsonSerializer(StateType.OPAQUE), retries=0)

    def read(body: bytes) -> None:
        server.reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        found = read_bounded(
            lambda: state.multi_get([("a",)]), len(body), StateError, "DynamoDB table t", least=100_000
        )
        assert found is None or len(found) == 1

    explore(read, [json.dumps(item).encode() for item in ITEMS])
    for body in (b"[]", b"null", b"<html>", b"", b"[" * 100_000, b'{"Responses":' * 50_000):
        read(body)


def windows(panes: Shape) -> Any:
    arrivals = [Arrival(pane, ("k",), 1, 2) for pane in (0, panes.width, 9 * panes.width)]
    return advance(None, arrivals, 3 * panes.width, panes, int.__add__)[0]


TIMES, COUNTS = Shape(60_000_000, 20_000_000), Shape(6, 2)
UPDATERS = [
    TimeWindowUpdater("windows 1", TIMES, ("word",), OfCombiner(int.__add__), 0),
    CountWindowUpdater("windows 2", COUNTS, (), OfCombiner(int.__add__), ()),
]
STORED = [windows(TIMES), windows(COUNTS)]


@hostile
@given(mutated_json(STORED))
def test_wrong_windows(stored: Any) -> None:
    for updater in UPDATERS:
        pane = updater.shape.pane_of(10**6)

        def call(updater: Any = updater, pane: int = pane) -> None:
            update = updater._advance(lambda _before: ([Arrival(pane, ("k",), 1, 2)], 10**6))
            value = update.update(stored)
            for window in closed_windows(value):
                updater._window_fields(("b",), window)

        # The partial results are the user's: those that cannot be added are its function's error.
        size = len(msgspec.json.encode(stored, enc_hook=str)) if not _has_surrogates(stored) else 1000
        read_bounded(call, size, (ForeignValueError, TypeError), steps=2000)


def _has_surrogates(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return True
    return False


@pytest.mark.parametrize(
    "stored",
    [
        [1e308, [], []],
        [1, [[4e23, []]], []],
        [1, [[1e308, []]], []],
        [1, [[0.5, [[["k"], 1]]]], []],
        7,
        "x",
        {},
    ],
)
def test_windows_of_no_whole_number(stored: Any) -> None:
    for updater in UPDATERS:
        with pytest.raises(
            ForeignValueError, match=f"{updater.operation}: the state holds .* Use another keyPrefix"
        ):
            updater._advance(lambda _before: ([], 0)).update(stored)


def test_windows_of_no_time() -> None:
    with pytest.raises(ForeignValueError, match=r"windows 1: the state holds a window .* which are no times"):
        UPDATERS[0]._window_fields(("b",), closed_windows([0, [], [[2**62, 2**62, ["k"], 1]]])[0])
