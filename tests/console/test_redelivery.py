"""A record that waits for a retry is dead-lettered at once, by a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import Lives
from command_line import Command
from kazoo.client import KazooClient
from lives import eventually

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Check
from kinesis_trident.console.dead_letter_replay import LetterPlace, letters_in, waiting_ids
from kinesis_trident.console.redelivery import dead_letter_now, deliver_again, find_requests
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.testing import MemoryKinesis, SparkCheckpoint


@pytest.fixture
def lives(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[Lives]:
    held = Lives(
        zookeeper.hosts,
        app,
        retryBackoff="1h..1h x1",
        retryLimit="3",
        onExhausted="deadLetter",
        deadLetter=str(tmp_path),
    )
    yield held
    held.end()


@pytest.mark.parametrize("running", [True, False])
def test_a_waiting_record_is_dead_lettered_by_the_running_query_or_its_next_life(
    lives: Lives, zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path, running: bool
) -> None:
    kinesis, checkpoint = MemoryKinesis(), SparkCheckpoint()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(5)])
    query = lives.begin(kinesis, checkpoint)
    query.batch(failing=[1, 3])
    client = KazooClient(zookeeper.hosts)
    client.start()
    store = SourceStore(client, query.run.layout)
    # Settles the batch; what failed is not due yet.
    assert query.plan() is None
    first, second = waiting_ids(store)
    with pytest.raises(ConsoleError, match="no such record waits"):
        dead_letter_now(store, {"orders/shardId-000000000000:77"})
    if not running:
        query.end()
    assert dead_letter_now(store, {first}) == 1
    (note,) = store.changes.notes()
    assert note.what == f"dead-letter now: {first}"
    if not running:
        query = lives.begin(kinesis, checkpoint)
    assert query.batch() == []
    assert query.plan() is None
    (letter,) = letters_in(LetterPlace(str(tmp_path)), app, {"orders"})
    assert (letter.message_id, letter.data) == (first, b"1")
    assert waiting_ids(store) == [second]
    assert store.external.read().asked == {}
    client.stop()
    client.close()


def test_a_query_that_would_stop_for_it_dead_letters_nothing(
    zookeeper: EmbeddedZooKeeper, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = MemoryKinesis()
    kinesis.put_records("orders", [(b"1", "k")])
    lives = Lives(zookeeper.hosts, app, retryBackoff="1h..1h x1", onExhausted="fail")
    query = lives.begin(kinesis)
    query.batch(failing=[1])
    assert query.plan() is None
    (waiting,) = waiting_ids(query.store)
    assert dead_letter_now(query.store, {waiting}) == 1

    def refused() -> bool:
        assert query.plan() is None
        return "would stop a query with onExhausted=fail" in caplog.text

    # The news of a request comes by a watch.
    eventually(refused, "the request is refused")
    notes = query.store.changes.notes()
    assert any("would stop a query with onExhausted=fail" in note.what for note in notes)
    assert waiting_ids(query.store) == [waiting]
    assert query.store.external.read().asked == {}
    lives.end()


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_done_while_somebody_asks_for_it_is_not_delivered_once_more(
    zookeeper: EmbeddedZooKeeper, app: str, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """A retry that is under way comes to its end before the query takes the request in."""
    kinesis = MemoryKinesis()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(5)])
    lives = Lives(zookeeper.hosts, app, retryBackoff="1ms..1ms x1", retryLimit="3")
    query = lives.begin(kinesis)
    query.batch(failing=[1, 3])
    query.planned()
    rows = query.rows()
    waiting = map(MessageId.parse, waiting_ids(query.store))
    assert deliver_again(find_requests([query.store], waiting), what="retry now") == 2
    query.publish(row for row in rows if fails and row[0] == 3)
    query.commit()
    query.run._on_request()
    if fails:
        assert [(row[0], row[2]) for row in query.batch()] == [(3, 1)]
    else:
        assert query.plan() is None
    assert "do not wait any more, and stay done: " in caplog.text
    notes = query.store.changes.notes()
    assert any("do not wait any more, and stay done: " in note.what for note in notes)
    assert query.store.external.read().asked == {}
    lives.end()


def test_who_asks_for_a_dead_letter_that_is_done_by_then_finds_that_in_the_notes(
    zookeeper: EmbeddedZooKeeper, app: str, command: Command
) -> None:
    kinesis = MemoryKinesis()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(3)])
    lives = Lives(zookeeper.hosts, app, retryBackoff="1ms..1ms x1", onExhausted="skip")
    query = lives.begin(kinesis)
    query.batch(failing=[1])
    # The request reaches ZooKeeper once the retry is planned, though the person has looked before that.
    query.planned()
    (waiting,) = waiting_ids(query.store)
    ((shard, node),) = query.store.shards.inflight().items()
    request = ExternalNode(op="bury", records=(node.waiting[0].last,))
    query.store.external.add(shard, request)
    assert [number for number, *_ in query.rows()] == [1]
    query.publish([])
    query.commit()
    query.run._on_request()
    assert query.plan() is None
    (note,) = query.store.changes.notes()
    said = f"not dead-lettered, as no run that waits ends with {waiting.partition(':')[2]}"
    assert (note.user, said in note.what) == ("the query", True)
    assert "not dead-lettered" in command("owner", app, "--json")[1]
    lives.end()


def test_what_is_asked_for_while_shards_or_streams_change_is_refused(
    lives: Lives, client: KazooClient
) -> None:
    """The records may be of a stream that is gone by the time of the request."""
    kinesis = MemoryKinesis()
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(5)])
    query = lives.begin(kinesis)
    query.batch(failing=[1, 3])
    assert query.plan() is None
    store = SourceStore(client, query.run.layout)
    first, second = waiting_ids(store)
    requests = find_requests([store], [MessageId.parse(first)])
    client.set(query.run.layout.shards, client.get(query.run.layout.shards)[0])
    with pytest.raises(StateMissingError, match=r"/shards has changed since .*\. Repeat the request"):
        deliver_again(requests, what="retry now")
    assert store.external.read().asked == {}
    assert deliver_again(find_requests([store], [MessageId.parse(first)]), what="retry now") == 1
    (other,) = find_requests([store], [MessageId.parse(second)])
    stale = replace(other, checks=(Check(query.run.layout.shards, 99),))
    with pytest.raises(StateMissingError, match="a part of the records is asked for by now, and is left out"):
        deliver_again([other, stale], what="retry again")
    # The part that was accepted is in the audit.
    assert [note.what for note in store.changes.notes()] == [f"retry again: {second}", f"retry now: {first}"]
