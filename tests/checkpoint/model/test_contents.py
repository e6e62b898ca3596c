"""Any bytes in any node give a node whose values can be used, or an error with the path: nothing else."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
import samples
from hypothesis import given, strategies as st
from node_samples import GOOD, NODES, PATH, SHARD, use

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model import nodes
from kinesis_trident.checkpoint.model.codec import PACKED_VERSION, SHARDS_VERSION, decode, encode
from kinesis_trident.checkpoint.model.nodes import Node

WRONG = [
    "abc", "FOO", "", None, True, [], {}, -1, 10**18, -(10**18), 10**30, 1.5, "9" * 5000, "-1", "1_0", " 7", "7\n",
    "٣", "7:", "AT_TIMESTAMP 99999999999999999999", "AFTER_SEQUENCE_NUMBER -3", [3, 1], [1], ["7"], {"x": 1},
    "\ud7ff", "SHARD_END 7:99999999999",
]  # fmt: skip
"""Values that somebody may have put in the place of one."""


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON document."""
    found = [at] if at else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in pairs:
        found += places(inside, (*at, key))
    return found


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


def read(data: bytes, kind: type[Node]) -> None:
    said = ""
    try:
        use(decode(PATH, data, kind))
    except CorruptNodeError as error:
        said = str(error)
    assert not said or (PATH in said and "Nothing was changed" in said and len(said) < 2000)


@pytest.mark.parametrize("name", NODES)
def test_a_wrong_value_in_any_place(name: str) -> None:
    kind = type(NODES[name])
    good = msgspec.json.decode(encode(NODES[name]))
    versions = {"packed": PACKED_VERSION, "wide": SHARDS_VERSION}
    assert good["v"] == versions.get(name.partition(" ")[0], nodes.VERSION)
    use(decode(PATH, encode(NODES[name]), kind))
    for at in places(good):
        for wrong in WRONG:
            read(
                msgspec.json.encode(put(good, at, wrong)) if not _huge(wrong) else _raw(good, at, wrong), kind
            )


def _huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 2**63


def _raw(good: Any, at: tuple[Any, ...], wrong: int) -> bytes:
    return msgspec.json.encode(put(good, at, "HERE")).replace(b'"HERE"', str(wrong).encode())


@given(kind=st.sampled_from(list(GOOD)), data=st.binary(max_size=300))
def test_any_bytes(kind: type[Node], data: bytes) -> None:
    read(data, kind)


@given(
    node=st.sampled_from(list(NODES.values())),
    at=st.integers(0, 2**16),
    length=st.integers(0, 30),
    new=st.binary(max_size=20) | st.integers().map(lambda number: str(number).encode()),
)
def test_damaged_bytes(node: Node, at: int, length: int, new: bytes) -> None:
    good = encode(node)
    at %= len(good)
    read(good[:at] + new + good[at + length :], type(node))


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("deep", [b"[", b'{"a":', b'{"v":1,"plan":', b'{"v":1,"parts":[['])
def test_deep_json(kind: type[Node], deep: bytes) -> None:
    for data in (deep * 100_000, b'{"v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        with pytest.raises(CorruptNodeError, match=PATH):
            decode(PATH, data, kind)


def test_a_large_node_takes_memory_in_proportion() -> None:
    data = b'{"v":1,"txid":1,"waiting":[' + b'{"first":"","last":"1"},' * 30_000 + b"5]}"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptNodeError):
            decode(PATH, data, nodes.InflightNode)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        (nodes.CheckpointNode, "checkpoint", "abc"),
        (nodes.CheckpointNode, "position", "FOO"),
        (nodes.CheckpointNode, "arrival", 10**18),
        (nodes.EpochNode, "since", 10**18),
        (nodes.StartNode, "timestamp", 10**18),
        (nodes.Pin, "end", "AFTER_SEQUENCE_NUMBER x"),
    ],
)
def test_what_is_wrong_is_said(kind: type[Node], field: str, wrong: object) -> None:
    good = msgspec.json.decode(encode(GOOD[kind]))
    with pytest.raises(CorruptNodeError, match=rf"{PATH} does not hold .* at `\$\.{field}`"):
        decode(PATH, msgspec.json.encode(good | {field: wrong}), kind)


def test_a_plan_that_contradicts_itself() -> None:
    for plan, says in (
        (samples.plan(read=("b", "a")), "read is not sorted"),
        (samples.plan(read=(SHARD, "z")), "names shard 'z', which has no position"),
    ):
        with pytest.raises(CorruptNodeError, match=says):
            decode(PATH, encode(nodes.BatchNode(epoch=1, plan=plan)), nodes.BatchNode)
