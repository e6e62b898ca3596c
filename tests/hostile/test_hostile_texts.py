"""Texts that people and other programs write: what they name, or an error that shows them and says what to give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis.connection  # noqa: F401  (what a reader imports is no step of it)
from exploring import explore, explores
from hostility import read_bounded

from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout, unescape
from kinesis_trident.checkpoint.model.nodes import CheckpointNode
from kinesis_trident.console.commands.checkpoints import _position
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.console.web.server import address_of
from kinesis_trident.spout.acks import _array, _group_by_shard
from kinesis_trident.spout.errors import AckError
from kinesis_trident.spout.options.starting_position import PositionSpec, position_spec
from kinesis_trident.spout.positions import After, At, parse_position
from kinesis_trident.tracker.errors import BackoffError, OrderError
from kinesis_trident.tracker.position_keys import keys_of, pack, unpack
from kinesis_trident.tracker.retry import Backoff
from kinesis_trident.trident.errors import StateOptionsError
from kinesis_trident.trident.stores.memcached import MemcachedState
from kinesis_trident.trident.stores.redis.connecting import parse_target

SHARD = "shardId-000000000000"


def text_of(data: bytes) -> str:
    """As the command line decodes its arguments: what is no UTF-8 becomes halves of surrogate pairs."""
    return data.decode(errors="surrogateescape")


def check(text: str) -> None:
    """Check that a node can hold a position, and the record that it names."""
    position = parse_position(text)
    record = position.record if isinstance(position, After | At) else None
    node = CheckpointNode(
        checkpoint=record.sequence if record else None,
        sub=record.sub if record else -1,
        txid=0,
        position=text,
    )
    assert decode("node", encode(node), CheckpointNode) == node


def message_ids(data: bytes) -> None:
    ids = [text_of(one) for one in data.split(b"\n")]
    found = read_bounded(lambda: [*_group_by_shard(_array(ids))], len(data), AckError, "essage id")
    for (stream, shard), keys in found or ():
        assert stream
        assert "/" not in shard
        text = pack(keys)
        assert pack(unpack(text)) == text


def packed(data: bytes) -> None:
    keys = read_bounded(lambda: unpack(text_of(data)), len(data), OrderError, "packed positions", fixed=2**22)
    if keys is not None and len(keys):
        assert (unpack(pack(keys)).array == keys.array).all()


def console_position(data: bytes) -> None:
    text = text_of(data)
    found = read_bounded(
        lambda: _position(text, SHARD, lambda: 0), len(data), ConsoleError, "is not a position"
    )
    if found is not None:
        check(str(found))
        assert parse_position(str(found)) == found


def specs(data: bytes) -> None:
    text = text_of(data)
    found = read_bounded(
        lambda: PositionSpec.parse(position_spec(text)), len(data), ValueError, "TRIM_HORIZON", memory=1000
    )
    for texts in (found.texts if found else {}).values():
        for one in texts.values():
            if one not in ("LATEST", "AT_TIMESTAMP"):
                assert str(parse_position(one)) == one
                check(one)


def backoffs(data: bytes) -> None:
    found = read_bounded(lambda: Backoff.parse(text_of(data)), len(data), BackoffError, "is not valid")
    if found is not None:
        assert 0 <= found.bound(1) <= found.bound(10**6) <= found.cap_ms


def homes(data: bytes) -> None:
    element = text_of(data)
    found = read_bounded(lambda: Layout("/r", "app").of_element(element), len(data), ValueError)
    assert found is None or found.element == element


def names(data: bytes) -> None:
    element = text_of(data)
    found = read_bounded(lambda: unescape(element), len(data), ValueError)
    assert found is None or Layout("/r", "app", found, 1).base.endswith(f"/{element}@1")


def shard_names(data: bytes) -> None:
    name = text_of(data)
    several = Layout("/r", "app")
    found = read_bounded(lambda: several.key_of(name), len(data), ValueError)
    assert found is None or several.name_of(found) == name


def listen_addresses(data: bytes) -> None:
    found = read_bounded(lambda: address_of(text_of(data)), len(data), ConsoleError, "Give host:port")
    assert found is None or 0 <= found[1] < 2**16


def memcached_addresses(data: bytes) -> None:
    found = read_bounded(
        lambda: MemcachedState.opaque(text_of(data)), len(data), StateOptionsError, "host:port"
    )
    for _, port, _ in found._addresses() if found else ():
        assert 0 < port < 2**16


def redis_urls(data: bytes) -> None:
    found = read_bounded(lambda: parse_target(text_of(data)), len(data), StateOptionsError, "://", steps=2000)
    # What stands before the hosts is the login.
    assert found is None or "@" not in found.where.partition("/")[2].partition("?")[0]


READERS: dict[str, tuple[Callable[[bytes], None], list[bytes]]] = {
    "message ids": (
        message_ids,
        [b"orders/%b:7:1\norders/%b:4959" % (SHARD.encode(), SHARD.encode()), b"a/b:1", b"a/b:0:999999999"],
    ),
    "packed positions": (
        packed,
        [
            pack(keys_of(["7", "4959", str(10**55)], [0, 1, -1])).encode(),
            pack(keys_of([str(10**55 + at) for at in range(400)])).encode(),
            pack(keys_of([])).encode(),
        ],
    ),
    "positions of the console": (
        console_position,
        [
            b"7",
            b"4959:3",
            b"7:999999999",
            b"7:9999999999",
            b"9" * 130,
            b"TRIM_HORIZON",
            b"LATEST",
            b"AT_TIMESTAMP 2026-01-02T03:04:05Z",
            b"AT_TIMESTAMP 17e8",
        ],
    ),
    "starting positions": (
        specs,
        [
            b"LATEST",
            b"AT_TIMESTAMP 2026-01-02T03:04:05+02:00",
            b'{"%b": "AFTER_SEQUENCE_NUMBER 7:1", "*": "LATEST"}' % SHARD.encode(),
            b'{"orders": {"%b": "SHARD_END"}, "*": "AT_TIMESTAMP 1700000000"}' % SHARD.encode(),
            b'{"metadata":{"streamName":"orders","batchId":"3"},"%b":{"iteratorType":"AFTER_SEQUENCE_NUMBER",'
            b'"iteratorPosition":"495"}}' % SHARD.encode(),
            b'{"%b":{"iteratorType":"AT_SEQUENCE_NUMBER","iteratorPosition":"4","subSequenceNumber":5,"isLast":false}}'
            % SHARD.encode(),
        ],
    ),
    "backoffs": (backoffs, [b"1s..60s x2", b"100ms..5m x1.5", b" 0ms .. 1h  x1 "]),
    "homes": (homes, [b"orders@1700000000000", b"@streams", b"a%2Fb@1"]),
    "names": (names, [b"orders", b"a%2Fb", b"%2E", b"%EF%BF%BD"]),
    "shard names": (shard_names, [b"orders@1700000000000/shardId-0", b"a@1/b/c"]),
    "addresses to listen at": (listen_addresses, [b"127.0.0.1:9464", b"[::1]:9464"]),
    "addresses of memcached": (memcached_addresses, [b"a:11211,b:1", b"user:word@a:11211"]),
    "URLs of Redis": (
        redis_urls,
        [
            b"redis://user:secret@a:6379/0?db=1",
            b"redis+sentinel://a:1,b:2/mymaster/3",
            b"rediss+cluster://:secret@[::1]:7000,b",
            b"unix:///tmp/x",
        ],
    ),
}


# Loads pandas, which is none of a text's cost.
assert [*_group_by_shard(_array(["a/b:1"]))]


@explores
@pytest.mark.parametrize("name", READERS)
def test_mutated_texts(name: str) -> None:
    explore(*READERS[name])


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "piece", [b"a", b"9", b"%2E", b",", b"[", b'{"a":', b" ", b":", b"/", b"\xff", b"s.."]
)
def test_long_texts(name: str, piece: bytes) -> None:
    read, samples = READERS[name]
    read(piece * 20_000)
    read(samples[0] + piece * 20_000)
