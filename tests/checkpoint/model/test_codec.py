from __future__ import annotations

import msgspec
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import (
    Batch,
    BatchOutcome,
    CheckpointNode,
    DeadLettersNode,
    InflightNode,
    Node,
    Pin,
    Plan,
    ShardsNode,
)
from kinesis_trident.checkpoint.model.packed_nodes import FEW, packed_kind

PATH = "/kinesis-trident/app/orders@1/checkpoints/shardId-000000000000"
GOOD = encode(samples.checkpoint(3, 10**55))


@given(st.integers(0, 10**128), st.integers(-1, 2**31), st.integers(1, 2**53))
def test_positions_of_any_length_survive(sequence: int, sub: int, txid: int) -> None:
    node = samples.checkpoint(txid, sequence, sub)
    assert decode(PATH, encode(node), CheckpointNode) == node


@pytest.mark.parametrize(
    "node",
    [
        Batch(epoch=2, plan=samples.plan(retries={samples.SHARD: (samples.run(1, 4),)}, limit=10)),
        samples.pin(2, served=(3, 0), missing=(1,), through="7:2"),
        samples.acks(2, failed=3),
        samples.inflight(3, samples.run(5), dead=(samples.run(1, 2, attempt=4),)),
    ],
    ids=lambda node: type(node).__name__,
)
def test_nodes_survive(node: Batch | Pin | BatchOutcome | InflightNode) -> None:
    assert decode(PATH, encode(node), type(node)) == node


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not hold a node"),
        (b"\x00\xff", "does not hold a node"),
        (b'{"v":1,"checkpoint":"\xff"}', "does not hold"),
        (b"[1]", "does not hold a node"),
        (GOOD[:-1], "does not hold a node"),
        (GOOD.replace(b'"v":1,', b""), "missing required field `v`"),
        (GOOD.replace(b'"v":1', b'"v":"1"'), "`int`"),
        (
            GOOD.replace(b'"v":1', b'"v":7'),
            "has format version 7; this release of kinesis-trident reads version 1",
        ),
        (GOOD.replace(b'"txid"', b'"tx"'), "CheckpointNode of version 1"),
        (GOOD[:-1] + b',"new":1}', "unknown field `new`"),
        (GOOD.replace(b'"position":"AFTER', b'"position":5,"x":"AFTER'), "CheckpointNode of version 1"),
    ],
)
def test_what_cannot_be_read_names_the_path_and_what_to_do(data: bytes, says: str) -> None:
    with pytest.raises(CorruptNodeError, match="Restore the node from a backup") as caught:
        decode(PATH, data, CheckpointNode)
    assert PATH in str(caught.value)
    assert says in str(caught.value)


def test_another_version_comes_before_unknown_fields() -> None:
    with pytest.raises(CorruptNodeError, match="format version 2"):
        decode(PATH, b'{"v":2,"where":"elsewhere"}', CheckpointNode)


def test_the_version_of_a_plan_within_a_batch_counts() -> None:
    data = encode(Batch(epoch=1, plan=msgspec.structs.replace(samples.plan(), v=2)))
    with pytest.raises(CorruptNodeError, match="format version 2"):
        decode(PATH, data, Batch)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (ShardsNode, b'{"v":1,"shards":{"a":{"parents":[],"state":"open","new":1}}}'),
        (
            DeadLettersNode,
            b'{"v":1,"count":1,"target":"x","last":[{"message_id":"m","attempts":4,"reason":"r","time":1,"txid":1,"x":1}]}',
        ),
        (InflightNode, b'{"v":1,"txid":1,"waiting":[{"first":"1","last":"1","new":1}]}'),
    ],
)
def test_unknown_fields_are_refused_at_any_depth(kind: type[ShardsNode], data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="unknown field"):
        decode(PATH, data, kind)


def test_a_few_runs_stand_for_everybody_to_read_and_many_are_packed() -> None:
    few = samples.inflight(3, *(samples.run(n) for n in range(FEW)))
    many = msgspec.structs.replace(few, waiting=(*few.waiting, samples.run(99)))
    assert encode(few) == msgspec.json.encode(few)
    assert encode(many).startswith(b'{"v":2,"txid":3,"waiting":[{"n":17,')
    for node in (few, many):
        assert decode(PATH, encode(node), InflightNode) == node


@pytest.mark.parametrize(
    "node",
    [
        Batch(
            epoch=2, plan=samples.plan(retries={samples.SHARD: tuple(map(samples.run, range(99)))}, limit=10)
        ),
        samples.acks(2, failed=99),
        samples.inflight(3, *map(samples.run, range(50)), dead=tuple(map(samples.run, range(50, 99)))),
    ],
    ids=lambda node: type(node).__name__,
)
def test_packed_nodes_survive_and_those_of_the_release_before_are_read(
    node: Batch | BatchOutcome | InflightNode,
) -> None:
    data = encode(node)
    plain = msgspec.json.encode(node)
    assert 4 * len(data) < len(plain)
    assert decode(PATH, data, type(node)) == decode(PATH, plain, type(node)) == node
    damaged = data.replace(b'"packed":"', b'"packed":"x')
    for wrong in (damaged, data[:-1], data[:-1] + b',"new":1}'):
        with pytest.raises(CorruptNodeError, match=r"of version 2.*Restore the node from a backup"):
            decode(PATH, wrong, type(node))


@pytest.mark.parametrize("kind", [InflightNode, Batch, Plan, BatchOutcome])
def test_packed_nodes_have_all_fields_of_theirs(kind: type[Node]) -> None:
    stored = packed_kind(kind, b'{"v":2,')
    assert stored is not kind
    assert [field.name for field in fields(stored)] == [field.name for field in fields(kind)]
