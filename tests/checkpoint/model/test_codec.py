from __future__ import annotations

import msgspec
import pytest
import samples
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.errors import CorruptNodeError, NewerFormatError
from kinesis_trident.checkpoint.model.codec import FEW, decode, encode
from kinesis_trident.checkpoint.model.nodes import (
    BatchNode,
    BatchOutcome,
    CheckpointNode,
    InflightNode,
    Node,
    NotDone,
    Pin,
    Plan,
)
from kinesis_trident.tracker.records import PendingRun

PATH = "/kinesis-trident/app/orders@1/checkpoints/shardId-000000000000"
GOOD = encode(samples.checkpoint(3, 10**55))


@given(st.integers(0, 10**128), st.integers(-1, 2**31), st.integers(1, 2**53))
def test_positions_of_any_length_survive(sequence: int, sub: int, txid: int) -> None:
    node = samples.checkpoint(txid, sequence, sub)
    assert decode(PATH, encode(node), CheckpointNode) == node


@pytest.mark.parametrize(
    "node",
    [
        BatchNode(epoch=2, plan=samples.plan(retries={samples.SHARD: (samples.run(1, 4),)}, limit=10)),
        samples.pin(2, served=(3, 0), missing=(1,), through="7:2"),
        samples.acks(2, failed=3),
        samples.inflight(3, samples.run(5), dead=(samples.run(1, 2, attempt=4),)),
    ],
    ids=lambda node: type(node).__name__,
)
def test_nodes_survive(node: BatchNode | Pin | BatchOutcome | InflightNode) -> None:
    assert decode(PATH, encode(node), type(node)) == node


@pytest.mark.parametrize(("step", "most"), [(1, 200), (2, 50_000), (10, 20_000)])
def test_records_that_are_not_acked_take_five_bytes_each_at_most(step: int, most: int) -> None:
    """With `maxInflightRecords` as it is by default: each batch writes them again (docs/acks.md)."""
    left = range(0, 10_000, step)
    bounds = (0, 10_000) if step == 1 else tuple(at + more for at in left for more in (0, 1))
    some = PendingRun(7, bounds, due=1_767_225_600_000, prev=str(10**55))
    node = InflightNode(txid=9, waiting=(), pending=(some,), turns=(7,), counted=True)
    assert some.count == len(left)
    assert len(encode(node)) <= most


def test_a_pin_that_an_older_release_would_take_for_done_is_of_a_newer_version() -> None:
    pin = samples.pin(2)
    odd = msgspec.structs.replace(pin, unreadable=(NotDone("7", "8", 2, "UNREADABLE: no data", "5"),))
    assert encode(pin).startswith(b'{"v":1,')
    assert encode(odd).startswith(b'{"v":2,')
    assert [decode(PATH, encode(one), Pin) for one in (pin, odd)] == [pin, odd]
    assert odd.rows == pin.rows - 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not hold a node"),
        (b"\x00\xff", "does not hold a node"),
        (b'{"v":1,"checkpoint":"\xff"}', "does not hold"),
        (b"[1]", "does not hold a node"),
        (GOOD[:-1], "does not hold a CheckpointNode of version 1: Input data was truncated"),
        (GOOD.replace(b'"v":1,', b""), "missing required field `v`"),
        (GOOD.replace(b'"v":1', b'"v":"1"'), "`int`"),
        (GOOD.replace(b'"v":1', b'"v":0'), "CheckpointNode of version 0"),
        (GOOD.replace(b'"txid"', b'"tx"'), "CheckpointNode of version 1"),
        (GOOD.replace(b'"position":"AFTER', b'"position":5,"x":"AFTER'), "CheckpointNode of version 1"),
    ],
)
def test_what_cannot_be_read_names_the_path_and_what_to_do(data: bytes, says: str) -> None:
    with pytest.raises(CorruptNodeError, match="Restore the node from a backup") as caught:
        decode(PATH, data, CheckpointNode)
    assert PATH in str(caught.value)
    assert says in str(caught.value)


def test_the_version_of_a_plan_within_a_batch_counts() -> None:
    data = encode(BatchNode(epoch=1, plan=samples.plan())).replace(b'"plan":{"v":1', b'"plan":{"v":2')
    with pytest.raises(CorruptNodeError, match=r"Invalid value 2 - at `\$\.plan\.v`"):
        decode(PATH, data, BatchNode)


def test_a_few_runs_stand_for_everybody_to_read_and_many_are_packed() -> None:
    few = samples.inflight(3, *(samples.run(n) for n in range(FEW)), dead=(samples.run(98),))
    many = msgspec.structs.replace(few, waiting=(*few.waiting, samples.run(99)))
    assert encode(few) == msgspec.json.encode(few)
    assert encode(many).startswith(b'{"v":4,"txid":3,"waiting":"eA')
    assert b'"dead":[{"first":"98",' in encode(many)
    for node in (few, many):
        assert decode(PATH, encode(node), InflightNode) == node


@pytest.mark.parametrize(
    ("version", "kind", "which", "known"),
    [
        (2, InflightNode, "another", "1, 4, 5"),
        (2, BatchNode, "another", "1, 4, 6"),
        (2, BatchOutcome, "another", "1, 4"),
        (3, InflightNode, "another", "1, 4, 5"),
        (3, Plan, "another", "1, 4, 6"),
        (5, BatchOutcome, "a newer", "1, 4"),
        (3, Pin, "a newer", "1, 2"),
        (2, CheckpointNode, "a newer", "1"),
    ],
)
def test_a_version_that_is_not_read_is_named_with_those_that_are(
    version: int, kind: type[Node], which: str, known: str
) -> None:
    then = "its documentation says how to go back" if which == "a newer" else "until few failed records wait"
    says = f"{which} release of .* .version {version} .* cannot read: it reads versions? {known}\\. No.*again.* {then}"
    with pytest.raises(NewerFormatError, match=says):
        decode(PATH, b'{"v":%d,"txid":3,"waiting":"OE9"}' % version, kind)


@pytest.mark.parametrize(
    "node",
    [
        BatchNode(
            epoch=2, plan=samples.plan(retries={samples.SHARD: tuple(map(samples.run, range(99)))}, limit=10)
        ),
        samples.acks(2, failed=99),
        samples.inflight(3, *map(samples.run, range(50)), dead=tuple(map(samples.run, range(50, 99)))),
    ],
    ids=lambda node: type(node).__name__,
)
def test_packed_nodes_survive_and_damaged_ones_are_errors(
    node: BatchNode | BatchOutcome | InflightNode,
) -> None:
    data = encode(node)
    plain = msgspec.json.encode(node)
    assert 3 * len(data) < len(plain)
    assert decode(PATH, data, type(node)) == decode(PATH, plain, type(node)) == node
    for wrong in (data.replace(b'":"eA', b'":"x'), data.replace(b'":"eA', b'":"eB'), data[:-1]):
        with pytest.raises(CorruptNodeError, match="Restore the node from a backup"):
            decode(PATH, wrong, type(node))


def test_packed_runs_of_another_kind_of_node_are_an_error() -> None:
    of_a_shard = encode(samples.inflight(3, *map(samples.run, range(50))))
    of_several = encode(samples.plan(retries={samples.SHARD: tuple(map(samples.run, range(50)))}))
    one, other = msgspec.json.decode(of_a_shard), msgspec.json.decode(of_several)
    one["waiting"], other["retries"] = other["retries"], one["waiting"]
    for data, kind in ((one, InflightNode), (other, Plan)):
        with pytest.raises(CorruptNodeError, match="belong to another kind of node"):
            decode(PATH, msgspec.json.encode(data), kind)


def test_a_batch_whose_plan_is_of_another_version_is_an_error() -> None:
    data = encode(
        BatchNode(epoch=1, plan=samples.plan(retries={samples.SHARD: tuple(map(samples.run, range(50)))}))
    )
    with pytest.raises(CorruptNodeError, match="plan of the batch is of another version"):
        decode(PATH, data.replace(b'"plan":{"v":4', b'"plan":{"v":1'), BatchNode)
