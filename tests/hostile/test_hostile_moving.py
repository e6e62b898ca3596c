"""Checkpoints of other systems: positions that this one can go on from, or an error that names their place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from exploring import explore, explores
from hostility import read_bounded
from lease_table import lease
from test_hostile_texts import check as check_position

from kinesis_trident.checkpoint.errors import MigrationError
from kinesis_trident.common.folder import Folder
from kinesis_trident.console.moving.foreign import System
from kinesis_trident.console.moving.kcl import Lease, position_text
from kinesis_trident.console.moving.offset_log import ends_in_folder, read_offset_log
from kinesis_trident.console.moving.storm import StormPaths, _read
from kinesis_trident.spout.positions import After

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def check(positions: Mapping[str, str]) -> None:
    """Check that an import can write the positions, and read them again."""
    for text in positions.values():
        if text != "LATEST":
            check_position(text)


LEASES = [
    lease(FIRST, 10**55, 3),
    lease(FIRST, "TRIM_HORIZON"),
    lease(SECOND, 7, identifier="123456789012:orders:1700000000", owner="worker", version=2),
    {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, "leaderHash": {"S": "x"}},
]


def leases(data: bytes) -> None:
    try:
        item = json.loads(data)
    except (ValueError, RecursionError):
        return
    # What botocore's parser leaves of an answer: attributes with one typed value each.
    typed = {"S": str, "N": str, "B": str, "BOOL": bool, "L": list, "M": dict, "SS": list, "NULL": bool}
    if not isinstance(item, dict) or not all(
        isinstance(one, dict) and all(isinstance(value, typed.get(key, int)) for key, value in one.items())
        for one in item.values()
    ):
        return

    def call() -> None:
        found = Lease.parse("table leases", item)
        if found is not None:
            assert found.epoch >= 0
            assert found.stream is not None
            check({found.shard: position_text(found, 1)})

    read_bounded(call, len(data), MigrationError, "lease")


NODES = {
    System.KINESIS_STORM_SPOUT: [
        b'{"checkpoint":"%d"}' % 10**55,
        b'{"checkpoint":null}',
        b'{"checkpoint":7}',
    ],
    System.STORM_KINESIS: [b'{"committedSequenceNumber":"%d"}' % 10**55, b'{"committedSequenceNumber":"7"}'],
}


@explores
@pytest.mark.parametrize("style", NODES)
def test_nodes_of_storm(style: System) -> None:
    paths = StormPaths(style, "p", "orders", "t" if style is System.KINESIS_STORM_SPOUT else "")

    def nodes(data: bytes) -> None:
        def call() -> None:
            found = _read(paths, FIRST, data)
            if found is not None:
                check({FIRST: str(After(found))})

        read_bounded(call, len(data), MigrationError, paths.of(FIRST))

    explore(nodes, NODES[style])
    for data in (
        b"[" * 100_000,
        b'{"checkpoint":' * 100_000,
        b'{"checkpoint":1e400}',
        b'{"checkpoint":"\xff"}',
    ):
        nodes(data)


@explores
def test_leases_of_kcl() -> None:
    explore(leases, [json.dumps(item).encode() for item in LEASES])


OFFSETS = {
    System.QUBOLE: (
        b'v1\n{"batchWatermarkMs":0,"conf":{}}\n'
        b'{"metadata":{"streamName":"orders","batchId":"3"},"%b":{"iteratorType":"AFTER_SEQUENCE_NUMBER",'
        b'"iteratorPosition":"495"},"%b":{"iteratorType":"TRIM_HORIZON","iteratorPosition":""}}'
        % (FIRST.encode(), SECOND.encode()),
        b'{"shardId":"%b","iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"499"}' % FIRST.encode(),
    ),
    System.AWSLABS: (
        b'v2\n{"batchWatermarkMs":0}\n0:{"metadata":{"streamName":"orders","batchId":"3"},"%b":{"iteratorType":'
        b'"AT_TIMESTAMP","iteratorPosition":"1700000000000"}}' % FIRST.encode(),
        b'{"shardId":"%b","iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"499","subSequenceNumber":2,'
        b'"isLast":true}' % FIRST.encode(),
    ),
}
_KINDS = {System.QUBOLE: "shard-commit", System.AWSLABS: "shard-source"}


@explores
@pytest.mark.parametrize("system", OFFSETS)
@pytest.mark.parametrize("which", ["offset", "end"])
def test_checkpoints_of_other_connectors(system: System, which: str, tmp_path: Path) -> None:
    offset, end = (tmp_path / name for name in ("offsets/7", f"sources/0/{_KINDS[system]}/3/{FIRST}"))
    for path, data in zip((offset, end, tmp_path / "commits/7"), (*OFFSETS[system], b"v1"), strict=True):
        path.parent.mkdir(parents=True)
        path.write_bytes(data)

    def read(data: bytes) -> None:
        (offset if which == "offset" else end).write_bytes(data)

        def call() -> Any:
            folder = Folder(str(tmp_path))
            return read_offset_log(system, folder, "orders", ends_in_folder(system, folder, None), None)

        found = read_bounded(call, len(data), MigrationError, str(tmp_path), memory=1000)
        if found is not None:
            check(found.positions)

    explore(read, [OFFSETS[system][which == "end"]])
    for data in (
        b"[" * 100_000,
        OFFSETS[system][0] + b"[" * 100_000,
        b"v1\n{}\n" + b'{"metadata":' * 100_000,
    ):
        read(data)
