"""Acks and fails beside streams that move: what a schedule of the family has found, and that it sees what it should."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.external_requests import ExternalStore
from kinesis_trident.checkpoint.zookeeper.operations import Check
from kinesis_trident.console.dead_letter_replay import waiting_ids
from kinesis_trident.console.redelivery import dead_letter_now, deliver_again, find_requests
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.spout.errors import StreamChangedError
from kinesis_trident.spout.query_by_hand import SparkCheckpoint
from kinesis_trident.spout.testing import MemoryKinesis
from model.operators import Operated
from model.requests import Requested, play


def test_streams_are_put_together_while_records_that_were_failed_wait_for_their_retry() -> None:
    played = Requested(Random(1), ("4.2",))
    played.calm = True
    played.put_to("a", 2)
    for what in ("begin", "batch"):
        played.happen(what)
    ids = sorted(played.delivered)
    played.say(ids, "fail")
    for what in ("batch", "adopt", "batch", "batch"):
        played.happen(what)
    assert played.streams == "a,b"
    assert [sorted(played.delivered[one]) for one in ids] == [[1, 2]] * 2


def test_what_an_unsettled_batch_of_a_gone_stream_asks_for_lets_the_query_go_on() -> None:
    played = Requested(Random(1), ("4.2",))
    played.put_to("a", 1)
    life = played.start(SparkCheckpoint(), judges=False, streamName="a,b")
    life.plan()
    life.parts()
    life.end()
    played.kinesis.held["a"] = MemoryKinesis("a", created=1_600_000_000_001, clock=lambda: played.now)
    life = played.start(SparkCheckpoint(), judges=False, streamName="a,b")
    # With a new checkpointLocation it is told the same, for ever.
    with pytest.raises(StreamChangedError, match=r"\. Go on with the new one by failOnDataLoss=false$"):
        life.plan()
    life.end()
    played.put_to("a", 1)
    life = played.start(SparkCheckpoint(), judges=False, streamName="a,b", failOnDataLoss="false")
    assert [row.message_id[:2] for row in life.drain()] == ["a/"]


def test_what_is_being_delivered_is_dead_lettered_once_it_has_failed_and_waits_again() -> None:
    """ZooKeeper shows it as waiting until its batch is settled: a person may choose it."""
    played = Operated(Random(1), ("4.2",))
    played.calm = True
    played.put_to("a", 1)
    played.happen("begin")
    played.happen("batch")
    (one,) = played.delivered
    played.say([one], "fail")
    played.happen("batch")
    store = played.life.store if played.life is not None else pytest.fail("no life")
    deliver_again(find_requests([store], [MessageId.parse(one)]), what="again")
    played.happen("batch")
    assert waiting_ids(store) == [one]
    with pytest.raises(
        ConsoleError, match=f"^{re.escape(one)} is being delivered just now, and may be acked"
    ):
        dead_letter_now(store, {one})
    played.happen("batch")
    played.say([one], "fail")
    played.happen("batch")
    assert (waiting_ids(store), store.external.read().asked) == ([one], {})
    assert dead_letter_now(store, {one}) == 1
    for _ in range(3):
        played.happen("batch")
    (letters,) = store.shards.dead_letters().values()
    assert (waiting_ids(store), letters.count) == ([], 1)


@pytest.mark.parametrize("kind", [Requested, Operated])
@pytest.mark.parametrize("wrong", [0, 2])
def test_a_request_that_is_made_never_or_twice_is_seen(
    monkeypatch: pytest.MonkeyPatch, wrong: int, kind: type[Requested]
) -> None:
    add = ExternalStore.add

    def add_wrongly(store: ExternalStore, shard: str, node: ExternalNode, checks: Sequence[Check]) -> str:
        times = wrong if kind is Requested or node.op == "replay" else 1
        for _ in range(times):
            # As a run takes it that knows of no attempts.
            add(store, shard, replace(node, attempt=None), checks)
        return ""

    monkeypatch.setattr(ExternalStore, "add", add_wrongly)
    assert any(play(Random(f"requests {seed}"), ("4.2",), kind).violations for seed in range(1, 60))


def test_a_request_that_is_not_withdrawn_as_said_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExternalStore, "withdraw", lambda *_: True)
    assert any(play(Random(f"operators {seed}"), ("4.2",), Operated).violations for seed in range(1, 200))
