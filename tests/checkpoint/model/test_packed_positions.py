from __future__ import annotations

import base64
import zlib

import msgspec
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.errors import NewerFormatError
from kinesis_trident.checkpoint.model.codec import MANY, PACKED_VERSION, SHARDS_VERSION, decode, encode
from kinesis_trident.checkpoint.model.nodes import BatchNode, Plan, StartText
from kinesis_trident.checkpoint.model.packed_positions import pack_positions, unpack_positions
from kinesis_trident.spout.errors import OffsetError
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset
from kinesis_trident.tracker.errors import OrderError

# As a stream of Kinesis has them: the number of the shard is above the 144th bit.
FIRST = 49_600_871_682_957_036_442_365_024_926_191_073_437_251_060_580_128_653_314
SHARDS = {
    f"shardId-{number:012}": f"AFTER_SEQUENCE_NUMBER {FIRST + (number << 144) + 977 * number**5 % 2**64}"
    for number in range(MANY + 1)
}

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
digits = st.text("0123456789", min_size=1, max_size=129)
sequences = digits | st.builds("{}:{}".format, digits, st.text("0123456789", min_size=1, max_size=10))
texts = st.one_of(
    st.just("TRIM_HORIZON"),
    st.just("SHARD_END"),
    st.builds("AT_TIMESTAMP {}".format, st.integers(-(10**15), 10**15)),
    st.builds(
        "{} {}".format,
        st.sampled_from(["AFTER_SEQUENCE_NUMBER", "AT_SEQUENCE_NUMBER", "SHARD_END"]),
        sequences,
    ),
)


@given(st.dictionaries(names, texts))
def test_any_positions_come_back_in_their_order(positions: dict[str, str]) -> None:
    msgspec.convert(positions, dict[str, StartText])
    found = unpack_positions(pack_positions(positions))
    assert [*found.items()] == [*positions.items()]


@given(st.dictionaries(names, st.text(max_size=60)))
def test_no_other_text_comes_back_as_another_one(texts: dict[str, str]) -> None:
    assert unpack_positions(pack_positions(texts)) == texts


def plan(count: int, read: int = 10) -> Plan:
    some = dict(list(SHARDS.items())[:count])
    return Plan(txid=7, plan="p", streams={"orders": 1}, positions=some, read=tuple(some)[:read])


def test_positions_of_very_many_shards_take_an_eighth_of_the_bytes() -> None:
    whole = msgspec.json.encode(SHARDS)
    assert 8 * len(pack_positions(SHARDS)) < len(whole)
    assert max(len(encode(plan(MANY + 1, read))) for read in (0, 10, MANY + 1)) < len(whole) / 7


@pytest.mark.parametrize("read", [0, 10, MANY, MANY + 1])
@pytest.mark.parametrize("count", [MANY, MANY + 1])
def test_only_a_plan_of_very_many_shards_is_of_a_newer_version(count: int, read: int) -> None:
    made = plan(count, read)
    version = SHARDS_VERSION if count > MANY else 1
    for node in (made, BatchNode(epoch=2, plan=made)):
        assert msgspec.json.decode(encode(node))["v"] == version
        assert decode("/path", encode(node), type(node)) == node
    offset = offset_from_plan(made)
    assert offset["v"] == version
    assert plan_from_offset(offset) == made


def test_a_plan_says_its_version_and_holds_what_that_has() -> None:
    offset = offset_from_plan(plan(MANY + 1))
    for other in ({"v": PACKED_VERSION}, {"positions": SHARDS}, {"positions": 3}):
        with pytest.raises(OffsetError, match="is not ours"):
            plan_from_offset(offset | other)
    with pytest.raises(OffsetError, match="is not ours"):
        plan_from_offset({name: value for name, value in offset.items() if name != "positions"})
    # A position that is none is found where those of few shards are.
    with pytest.raises(OffsetError, match="is not ours"):
        plan_from_offset(offset | {"positions": pack_positions(SHARDS | {"a": "FOO"})})
    with pytest.raises(OffsetError, match="no position"):
        plan_from_offset(offset | {"positions": pack_positions({"a": "TRIM_HORIZON"})})
    whole = offset_from_plan(plan(MANY + 1, MANY + 1))
    for wrong, says in ((SHARDS, "read is not sorted"), (["a"], "no position")):
        read = pack_positions(dict.fromkeys(sorted(wrong, reverse=True), ""))
        with pytest.raises(OffsetError, match=says):
            plan_from_offset(whole | {"read": read})
    with pytest.raises(NewerFormatError, match="reads versions 1, 4, 6"):
        decode("/path", encode(plan(MANY + 1)).replace(b'{"v":6,', b'{"v":7,'), Plan)


def packed(shape: object, columns: bytes) -> str:
    return base64.b64encode(zlib.compress(msgspec.json.encode(shape) + b"\n" + columns)).decode()


GOOD = {"count": 1, "name": 1, "number": 1, "words": ["SHARD_END"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "AAAA",
        pack_positions(SHARDS)[:-8],
        packed(GOOD, b"a\0\0\0\0"),
        packed(GOOD | {"count": -1}, b""),
        packed(GOOD | {"count": 0, "name": 0}, b""),
        packed(GOOD | {"number": -4}, b"a"),
        packed(GOOD, b"a\0\0\0\1\0"),
        packed(GOOD, b"\xff\0\0\0\0\0"),
        packed({}, b""),
        packed(GOOD, b"\0" * 2**27),
    ],
)
def test_what_was_not_packed_is_an_error(text: str) -> None:
    assert unpack_positions(packed(GOOD, b"a\0\0\0\0\0")) == {"a": "SHARD_END"}
    with pytest.raises(OrderError, match="packed positions"):
        unpack_positions(text)
