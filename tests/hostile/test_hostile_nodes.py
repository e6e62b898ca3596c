"""Nodes of ZooKeeper: values that can be used, or an error with the path, within bounds of memory and operations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hostility import hostile, mutated, mutated_json, read_bounded
from hypothesis import given, strategies as st
from node_samples import NODES, PATH, use

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import Node

DOCUMENTS = {name: msgspec.json.decode(encode(node)) for name, node in NODES.items()}


def read(data: bytes, kind: type[Node]) -> None:
    def call() -> Node:
        return decode(PATH, data, kind)

    node = read_bounded(call, len(data), CorruptNodeError, PATH, "Nothing was changed", memory=2000)
    if node is not None:
        use(node)


@hostile
@given(st.data())
def test_wrong_nodes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(NODES)))
    document: Any = data.draw(mutated_json([DOCUMENTS[name]]))
    try:
        encoded = msgspec.json.encode(document)
    except UnicodeEncodeError:
        return
    read(encoded, type(NODES[name]))


@hostile
@given(st.data())
def test_damaged_nodes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(NODES)))
    read(data.draw(mutated([encode(NODES[name])])), type(NODES[name]))


@pytest.mark.parametrize("name", ["InflightNode", "packed InflightNode", "BatchOutcome", "ShardsNode"])
def test_large_nodes(name: str) -> None:
    good = encode(NODES[name])
    read(good[:-1] + b',"x":[' + b"1," * 100_000 + b"1]}", type(NODES[name]))
    read(good.replace(b"[", b"[" * 5000, 1), type(NODES[name]))
