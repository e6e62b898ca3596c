"""A store that comes back behind what was applied to it: the query stops, and what to do is its user's decision."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from server_fixtures import _program
from servers import RedisServer

from kinesis_trident.trident import StateBehindError
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState
from kinesis_trident.trident.stores.ownership import OWNER, Owner
from kinesis_trident.trident.stores.redis import RedisState


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer(_program("redis-server")) as server:
        yield server


def count(factory: MapStateFactory, txid: int, applied: int, attempt: int = 1) -> Any:
    who = Owner("shop", "lines@1", "counts", frozenset(("counts",)), applied=applied)
    state = factory.make_state({ATTEMPT: attempt, OWNER: who}, 0, 1)
    state.begin_commit(txid)
    [counted] = state.multi_combine([("a",)], operator.add, [1])
    state.commit(txid)
    return counted


def test_a_redis_that_lost_everything(own_redis: RedisServer) -> None:
    factory = RedisState.opaque(own_redis.url)
    # Nothing was ever applied, so nothing can be lost. A batch without tuples for this state leaves a gap.
    for txid, applied in [(1, 0), (2, 1), (5, 2)]:
        count(factory, txid, applied)
    own_redis.kill()
    for attempt in (1, 2):
        with pytest.raises(
            StateBehindError,
            match=r"does not know of any batch .*shop/lines@1/counts, to which batch 5 was applied.*acceptLossUpTo=5 ",
        ):
            count(factory, 6, 5, attempt)
    with pytest.raises(StateBehindError):
        count(RedisState.opaque(own_redis.url, acceptLossUpTo=4), 6, 5)
    accepting = RedisState.opaque(own_redis.url, acceptLossUpTo=5)
    assert [count(accepting, txid, txid - 1) for txid in (6, 7)] == [1, 2]
    # The option stays in the code: what is lost later is another loss.
    own_redis.kill()
    with pytest.raises(StateBehindError, match="acceptLossUpTo=7 "):
        count(accepting, 8, 7)


def test_a_redis_that_came_back_from_an_older_copy(own_redis: RedisServer) -> None:
    factory = RedisState.opaque(own_redis.url)
    count(factory, 1, 0)
    count(factory, 2, 1)
    redis.Redis.from_url(own_redis.url).save()
    count(factory, 3, 2)
    own_redis.kill()
    with pytest.raises(
        StateBehindError, match=r"knows no batch after 2 of the state of .* which batch 3 was"
    ):
        count(factory, 4, 3)
    # The last batch that is certain may be replayed: its driver was killed before it noted it.
    assert count(factory, 3, 2, attempt=2) == 3
    assert count(RedisState.opaque(own_redis.url, acceptLossUpTo=3), 4, 3) == 4


@pytest.mark.parametrize(
    "make", [lambda url: MemoryMapState.opaque(), lambda url: RedisState.opaque(url, expireIntervalSec=60)]
)
def test_what_forgets_by_design_may_have_forgotten(own_redis: RedisServer, make: Any) -> None:
    assert count(make(own_redis.url), 9, 8) == 1
