"""The planning process keeps nothing of shards that the stream has dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from by_hand import Lives, Query

from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.spout.testing import MemoryKinesis

RESHARDS = 4


def containers_of(root: object) -> Iterator[tuple[str, Collection[object]]]:
    """Yield the dictionaries and sets of all objects of the product below one, with the names of their attributes."""
    seen, left = set[int](), [("", root)]
    while left:
        where, one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict | set | frozenset):
            yield where, one
        if isinstance(one, dict):
            left += [(where, value) for value in one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left += [(where, value) for value in one]
        elif type(one).__module__.startswith("kinesis_trident."):
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*getattr(one, "__dict__", {}), *slots]
            left += [(f"{type(one).__name__}.{name}", getattr(one, name, None)) for name in names]


def read_on(query: Query) -> None:
    """Run batches until there is nothing to do."""
    while query.plan() is not None:
        query.batch()


def test_no_object_of_the_process_has_the_name_of_a_gone_shard_as_a_key(
    make_lives: Callable[..., Lives],
) -> None:
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    query = make_lives(retryLimit="1").begin(kinesis)
    gone, shard = [], "shardId-000000000000"
    for number in range(RESHARDS):
        kinesis.put(shard, str(number).encode())
        query.batch(failing={number})
        gone.append(shard)
        (shard, other) = kinesis.split(shard)
        kinesis.put(shard, str(100 + number).encode())
        kinesis.put(other, str(200 + number).encode())
        read_on(query)
        query.run.report()
        gone.append(other)
        kinesis.close(other)
        read_on(query)
    # A shard of which a record waits for its retry is known.
    query.drain()
    for name in gone:
        kinesis.forget(name)
    for _ in range(3):
        query.run._state.list_shards(everything=True)
        read_on(query)
    left = set(gone) - set(query.run._state.shards.lineage)
    assert len(left) >= RESHARDS
    kept = {where for where, held in containers_of(query.run) if not left.isdisjoint(map(_name, held))}
    # What the test's Kinesis holds is no part of the process; the last plan is replaced by the next one.
    assert not {one for one in kept if not one.startswith(("Memory", "Held", "Plan."))}


def _name(key: object) -> str:
    return key.shard if isinstance(key, ShardKey) else str(key)
