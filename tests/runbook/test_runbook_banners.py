"""The runbook's banners: each finding of `status` and `check` is made to happen to a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import Lives, Query, numbers
from command_line import Command
from lives import eventually
from night import Night, entry
from situations import A, Clock, filled, looked, moved_clock, scripted_options

from kinesis_trident import Acks
from kinesis_trident.bolt.tracking.carriers import SlowCallNotes
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model import standing
from kinesis_trident.checkpoint.model.nodes import SlowCall
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import config_of
from kinesis_trident.spout.errors import ExhaustedError
from kinesis_trident.spout.kinesis import KeyAwayError, StreamMissingError, ThrottledError, Unavailable
from kinesis_trident.spout.planner.run import SourceRun
from kinesis_trident.spout.testing import MemoryKinesis, Quotas, ScriptedKinesis
from kinesis_trident.tracker.failure import Failure, Kind, text_of

HOUR = 3600
NEVER = {"retryBackoff": "1h..1h x1", "retryLimit": "3"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, lives: Lives) -> Clock:
    """The clock of the lives and of the command line."""
    lives.clock = moved_clock(monkeypatch)
    return lives.clock


@pytest.fixture
def begin(lives: Lives, clock: Clock) -> Callable[..., Query]:
    """`begin(kinesis, checkpoint=None, **options)`: a life whose failed records wait for an hour."""
    return lambda kinesis, checkpoint=None, **options: lives.begin(kinesis, checkpoint, **NEVER | options)


Begin = Callable[..., Query]


@entry("not-running")
def test_a_query_that_has_ended(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    query = begin(kinesis)
    query.batch()
    looked(query)
    query.end()
    night.finds(command, app, "not-running")
    night.tries("start the query again")
    begin(kinesis, query.checkpoint).plan()
    assert night.is_over(command, app)


@entry("takeover")
def test_two_queries_of_one_name(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled()
    first = begin(kinesis)
    first.batch()
    second = begin(kinesis, first.checkpoint)
    with pytest.raises(Exception, match="taken over"):
        first.plan()
    second.plan()
    night.finds(command, app, "takeover")
    night.tries("its own `applicationName`")
    begin(kinesis, applicationName=f"{app}-2").batch()
    assert night.is_over(command, f"{app}-2")
    assert second.plan() is None
    night.tries("the banner goes after five minutes")
    clock.ahead += 5 * 60 + 1
    assert night.is_over(command, app)


@entry("data-loss")
def test_records_that_expired_unread(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    query = begin(kinesis)
    query.batch()
    kinesis.put(A, b"4")
    query.end()
    left, _ = kinesis.split(A)
    kinesis.put(left, b"5")
    kinesis.forget(A)
    again = begin(kinesis, query.checkpoint, failOnDataLoss="false")
    assert numbers(again.batch()) == [5]
    looked(again)
    night.finds(command, app, "data-loss")

    night.tries("Raise the stream's retention")
    with ScriptedKinesis() as server:
        server.create_stream("orders")
        given = {"endpointUrl": server.endpoint_url, "applicationName": f"{app}-2"}
        server.put("orders", A, b"1")
        query = begin(None, **given)
        assert numbers(query.batch()) == [1]
        query.end()
        server.put("orders", A, b"2")
        server.client().increase_stream_retention_period(StreamName="orders", RetentionPeriodHours=48)
        server.advance(25 * HOUR)
        query = begin(None, query.checkpoint, **given)
        assert numbers(query.drain()) == [2]
        looked(query)
        assert night.is_over(command, f"{app}-2")
        query.end()


@entry("exhausted")
def test_a_record_that_stopped_the_query(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    given = {"retryLimit": "0", "onExhausted": "fail"}
    query = begin(kinesis, **given)
    query.batch(failing=[1])
    with pytest.raises(ExhaustedError):
        query.plan()
    query.end()
    night.finds(command, app, "exhausted")
    night.tries("replay --exhausted`")
    assert command("dead-letters", app, "replay", "--exhausted")[0] == 0
    query = begin(kinesis, query.checkpoint, **given)
    assert numbers(query.batch()) == [1]
    assert night.is_over(command, app)
    kinesis.put(A, b"7")
    query.batch(failing=[7])
    with pytest.raises(ExhaustedError):
        query.plan()
    query.end()
    night.tries("or `onExhausted=skip`, and start it again")
    query = begin(kinesis, query.checkpoint, **given | {"onExhausted": "skip"})
    kinesis.put(A, b"8")
    assert numbers(query.drain()) == [8]
    query.plan()
    assert night.is_over(command, app)


@entry("paused")
def test_a_query_that_somebody_has_paused(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_trident.console.commands.pauses.name_of_user", lambda: "ops@worker-7")
    kinesis = filled(1, clock)
    query = begin(kinesis)
    query.batch()
    assert command("pause", app, "--for", "8h", "--reason", "the sink is being migrated")[0] == 0
    kinesis.put(A, b"9")
    looked(query)
    night.finds(command, app, "paused")
    night.tries("`kinesis-trident pause APP --for 30m --reason TEXT` gives it another end")
    assert command("pause", app, "--for", "30m", "--reason", "nearly done")[0] == 0
    clock.ahead += 30 * 60
    assert numbers(query.batch()) == [9]
    assert night.is_over(command, app)

    assert command("pause", app, "--reason", "once more")[0] == 0
    kinesis.put(A, b"10")
    looked(query)
    assert not night.is_over(command, app)
    night.tries("`kinesis-trident resume APP` reads on")
    assert command("resume", app)[0] == 0
    night.tries("with `--shard` or `--stream`")
    assert command("pause", app, "--shard", A, "--reason", "once more")[0] == 0
    assert command("resume", app, "--shard", A)[0] == 0
    assert numbers(query.batch()) == [10]
    assert night.is_over(command, app)


@entry("blocked")
def test_a_shard_with_too_many_failed_records(
    night: Night, begin: Begin, command: Command, app: str, tmp_path: Path, zookeeper: EmbeddedZooKeeper
) -> None:
    kinesis = filled()
    query = begin(kinesis, maxRetryingRecords="2")
    query.batch(failing=[0, 2])
    kinesis.put(A, b"9")
    looked(query)
    night.finds(command, app, "blocked")
    night.tries("`kinesis-trident retries APP`")
    assert "ValueError: 0" in command("retries", app)[1]
    query.end()
    night.tries("raise `maxRetryingRecords`")
    # tests/spout/test_retry_scale.py: with it, retries keep up where ranges of the stream do not.
    night.tries("set `retrySpool`")
    again = begin(kinesis, query.checkpoint, maxRetryingRecords="100", retrySpool=str(tmp_path / "spool"))
    assert numbers(again.batch()) == [9]
    looked(again)
    assert night.is_over(command, app)

    acked = {"applicationName": f"{app}-2", "ackMode": "explicit", "messageTimeout": "1h"}
    query = begin(kinesis, maxInflightRecords="2", **acked)
    rows = query.batch()
    looked(query)
    assert not night.is_over(command, f"{app}-2")
    night.tries("With `ackMode=explicit`, ack them")
    with Acks(f"{app}-2", {"zookeeper.hosts": zookeeper.hosts}) as acks:
        assert acks.ack(row[1] for row in rows) == len(rows)
    eventually(lambda: query.plan() or night.is_over(command, f"{app}-2"), "the shard is read on")


@entry("many-waiting")
def test_nearly_more_failed_records_than_zookeeper_bears(
    night: Night,
    begin: Begin,
    command: Command,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
) -> None:
    monkeypatch.setattr(standing, "MANY_GROUPS", 3)
    kinesis = filled()
    for number in range(10, 18):
        kinesis.put(A, b"%d" % number)
    query = begin(kinesis, maxRetryingRecords="2")
    query.batch(failing=[11, 13, 15])
    looked(query)
    assert "3 groups of failed neighbours wait in ZooKeeper" in caplog.text
    night.finds(command, app, "many-waiting")
    # More is no way out of the shard that stands then.
    screen = command("status", app)[1]
    assert "reads nothing new" in screen
    assert "raise maxRetryingRecords" not in screen
    night.tries("`kinesis-trident retries APP`")
    assert "ValueError: 11" in command("retries", app)[1]
    night.tries("they are retried by themselves")
    query.end()
    night.tries("a lower `maxFetchRecordsPerShard` and a lower `maxRetryingRecords`")
    query = begin(kinesis, query.checkpoint, maxRetryingRecords="1", maxFetchRecordsPerShard="1")
    clock.ahead += 2 * HOUR
    while not night.is_over(command, app):
        query.batch(failing=[])
        looked(query)


def failing_for_a_minute(error: Exception, begin: Begin, clock: Clock) -> tuple[MemoryKinesis, Query]:
    """Return a Kinesis and its query, whose looks at a shard have ended in this error for more than a minute."""
    kinesis = filled(clock=clock)
    query = begin(kinesis)
    query.batch()
    looked(query)
    kinesis.fail(A, *[error] * 100_000)
    looked(query)
    clock.ahead += 60
    looked(query)
    return kinesis, query


@entry("throttled")
def test_a_stream_that_is_throttled(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis, query = failing_for_a_minute(ThrottledError("Rate exceeded for shard"), begin, clock)
    night.finds(command, app, "throttled")
    night.tries("Stop the other readers")
    kinesis.clear()
    looked(query)
    assert night.is_over(command, app)


@entry("unavailable")
def test_a_stream_that_does_not_answer(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis, query = failing_for_a_minute(Unavailable("no route to host"), begin, clock)
    night.finds(command, app, "unavailable")
    night.tries("goes on by itself")
    kinesis.clear()
    looked(query)
    assert night.is_over(command, app)


@entry("unusable-key")
def test_a_key_that_is_disabled_for_a_minute(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis, query = failing_for_a_minute(KeyAwayError("KMSDisabledException: it is disabled"), begin, clock)
    night.finds(command, app, "unusable-key")
    night.tries("Enable the key")
    kinesis.clear()
    looked(query)
    assert night.is_over(command, app)


@entry("start-fails")
def test_starts_that_fail(
    night: Night, begin: Begin, command: Command, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    query = begin(filled())
    query.batch()
    query.plan()
    query.run.end()
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        options = scripted_options(kinesis, zookeeper, app)
        for _ in range(2):
            with pytest.raises(StreamMissingError):
                SourceRun.open(options)
        night.finds(command, app, "start-fails")
        night.tries("Do what the error says")
        kinesis.create_stream("orders", 1)
        SourceRun.open(options).close()
    assert "start-fails" not in command("status", app, "--json")[1]


@entry("slow-call")
def test_a_call_that_does_not_end(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled()
    query = begin(kinesis)
    txid = query.planned().txid
    query.rows()
    epoch = query.store.epochs.newest_run()
    assert epoch is not None
    # tests/e2e/test_endless_calls.py has it from a task of Spark.
    notes = SlowCallNotes(config_of(query.store.client), query.run.layout, txid, epoch[0])
    note = notes.put(SlowCall("map", "parse", int(clock() * 1000), {0: 7}))
    clock.ahead += 90
    night.finds(command, app, "slow-call")
    night.tries("the banner goes when the call ends")
    notes.remove(note)
    assert night.is_over(command, app)
    query.end()
    notes.put(SlowCall("map", "parse", int(clock() * 1000), {0: 7}))
    night.tries("stop it, set `recordTimeout`, such as `60s`, and start it again")
    query = begin(kinesis, query.checkpoint, recordTimeout="60s")
    query.rows()
    # What a run before it has noted is not said of this one.
    assert night.is_over(command, app)


@entry("slow-batch")
def test_a_batch_that_does_not_move(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis)
    query.planned()
    query.rows()
    clock.ahead += 11 * 60
    night.finds(command, app, "slow-batch")
    query.publish()
    query.commit()
    query.end()
    night.tries("start it again")
    query = begin(kinesis, query.checkpoint)
    looked(query)
    assert night.is_over(command, app)

    # One that cannot finish, whatever is done.
    kinesis.put(A, b"7")
    query.planned()
    assert numbers(query.rows()) == [7]
    clock.ahead += 11 * 60
    assert not night.is_over(command, app)
    query.end()
    night.tries("`kinesis-trident checkpoints APP abandon-batch`")
    assert command("checkpoints", app, "abandon-batch", "--yes")[0] == 0
    query = begin(kinesis, query.checkpoint)
    assert query.batch() == []
    assert numbers(query.batch()) == [7]
    looked(query)
    assert night.is_over(command, app)


@entry("not-asked")
def test_a_run_that_spark_asks_for_nothing(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis)
    query.batch()
    looked(query)
    clock.ahead += 6 * 60
    night.finds(command, app, "not-asked")
    query.end()
    night.tries("start the query again")
    looked(begin(kinesis, query.checkpoint))
    assert night.is_over(command, app)


@entry("retention")
def test_records_that_expire_soon(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis, maxRetryingRecords="1")
    query.batch(failing=[0])
    kinesis.put(A, b"9")
    looked(query)
    clock.ahead += 21 * HOUR
    night.finds(command, app, "retention")
    query.end()
    night.tries("Raise the stream's retention now")
    kinesis._stream.retention_hours = 48
    query = begin(kinesis, query.checkpoint, maxRetryingRecords="1")
    looked(query)
    assert night.is_over(command, app)
    query.end()
    night.tries("then let it catch up")
    again = begin(kinesis, query.checkpoint, maxRetryingRecords="100")
    while 9 not in numbers(again.batch()):
        pass
    looked(again)
    assert night.is_over(command, app)


@entry("retrying")
def test_failed_records_that_wait(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    query = begin(kinesis)
    query.batch(failing=[1, 2])
    looked(query)
    night.finds(command, app, "retrying")
    night.tries("`kinesis-trident retries APP` shows all reasons")
    shown = command("retries", app)[1]
    assert "ValueError: 1" in shown
    assert "ValueError: 2" in shown
    night.tries("`kinesis-trident retries APP now --all`")
    assert command("retries", app, "now", "--all")[0] == 0
    assert numbers(query.batch()) == [1, 2]
    looked(query)
    assert night.is_over(command, app)


@entry("held")
def test_records_that_a_bolt_holds(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    query = begin(kinesis)
    query.planned()
    rows = query.rows()
    super(Query, query).publish(rows[:2], lambda _: text_of(Failure(Kind.HELD, where=("join",))))
    query.commit()
    looked(query)
    night.finds(command, app, "held")
    night.tries("Nothing, if the others come")
    kinesis.put(A, b"9")
    assert set(numbers(query.drain())) >= {9}
    looked(query)
    assert night.is_over(command, app)


@entry("dead-letters")
def test_records_that_were_dead_lettered(
    night: Night, begin: Begin, command: Command, app: str, tmp_path: Path
) -> None:
    kinesis = filled()
    query = begin(kinesis, retryLimit="0", onExhausted="deadLetter", deadLetter=str(tmp_path))
    query.batch(failing=[1])
    query.planned()
    query.rows()
    query.publish()
    query.commit()
    looked(query)
    night.finds(command, app, "dead-letters")
    night.tries("`kinesis-trident dead-letters APP` lists them with their reasons")
    assert "ValueError: 1" in command("dead-letters", app)[1]
    night.tries("`kinesis-trident dead-letters APP replay --all`")
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert numbers(query.batch()) == [1]
    query.plan()
    assert "was delivered again" in command("status", app)[1]
    assert command("dead-letters", app, "replay", "--all")[0] == 1
    # More letters than ZooKeeper lists, none of which are of neighbours.
    failing = list(range(100, 150, 2))
    kinesis.put_records("orders", [(str(number).encode(), "k") for number in range(100, 150)])
    query.batch(failing)
    query.batch()
    assert query.plan() is None
    assert command("dead-letters", app, "replay", "--all")[0] == 1
    assert f"replay --from {tmp_path}" in " ".join(command("status", app)[1].split())
    night.tries("`--from FOLDER` in place of `--all`")
    assert command("dead-letters", app, "replay", "--from", str(tmp_path))[0] == 0
    assert numbers(query.batch()) == failing


@entry("rejected-requests")
def test_a_request_that_nobody_can_read(night: Night, begin: Begin, command: Command, app: str) -> None:
    query = begin(filled())
    query.batch()
    looked(query)
    layout, client = query.run.layout, query.store.client
    client.create(f"{layout.external_of(A)}/request-7", b"ack 1, 2 and 3", makepath=True)
    client.set(layout.external, b"")
    rejected = f"{layout.rejected}/{A}:request-7"
    # The news of a request comes by a watch.
    eventually(lambda: query.plan() or client.exists(rejected), "the request is refused")
    night.finds(command, app, "rejected-requests")
    night.tries("delete the node")
    client.delete(rejected)
    assert night.is_over(command, app)


@entry("never-started")
def test_a_home_without_a_run(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    other = begin(kinesis, applicationName=f"{app}-2")
    # A run that was killed before it had an epoch.
    SourceStore(other.store.client, replace(other.run.layout, application=app)).epochs._make_base()
    night.finds(command, app, "never-started")
    night.tries("start the query")
    begin(kinesis).batch()
    assert night.is_over(command, app)


@entry("corrupt-node")
def test_a_node_that_cannot_be_read(
    night: Night, begin: Begin, command: Command, app: str, lives: Lives, tmp_path: Path
) -> None:
    kinesis = filled()
    query = begin(kinesis)
    query.batch(failing=[1])
    looked(query)
    path = query.run.layout.inflight_of(A)
    good, _ = query.store.client.get(path)
    query.store.client.set(path, b'{"v": 1, "txid": "on')
    night.finds(command, app, "corrupt-node")
    night.tries("write back what it held")
    query.store.client.set(path, good)
    assert night.is_over(command, app)

    # The same with a copy of one's own, over nodes that nobody can read.
    saved = str(tmp_path / "saved.jsonl")
    query.end()
    assert command("checkpoints", app, "export", saved)[0] == 0
    layout = query.run.layout
    for node in (path, layout.checkpoint_of(A), layout.shards):
        query = begin(kinesis, query.checkpoint)
        query.store.client.set(node, b'{"v": 1, "txid": "on')
        query.end()
        night.tries("checkpoints APP import")
        code, out, err = command("checkpoints", app, "import", saved, "--yes")
        assert (code, node in err, "done; backup" in out) == (0, True, True), (out, err)
        assert night.is_over(command, app)
        backups = begin(kinesis, query.checkpoint).store.changes.backups()
        assert {node: b'{"v": 1, "txid": "on'} in [backup.unreadable for backup in backups.values()]
        lives.end()
    query = begin(kinesis, query.checkpoint)
    kinesis.put(A, b"8")
    assert numbers(query.batch()) == [8]


@entry("max-lag")
def test_a_lag_beyond_its_limit(night: Night, begin: Begin, command: Command, app: str, clock: Clock) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis, maxRetryingRecords="1")
    query.batch(failing=[0])
    kinesis.put(A, b"9")
    looked(query)
    clock.ahead += 8 * 60
    night.finds(command, app, "max-lag", "--max-lag", "5m")
    night.tries("`kinesis-trident status APP`")
    assert "blocked" not in command("status", app)[1]
    assert "reads nothing new" in command("status", app)[1]


@entry("falling-behind")
def test_a_query_that_is_too_slow(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis, maxRecordsPerTrigger="1")
    for minute in range(1, 11):
        for _ in range(3):
            kinesis.put(A, b"7")
        query.run._notes._due = 0
        query.batch()
        clock.ahead = 60 * minute

    def has_trend() -> bool:
        query.run._notes._due = 0
        if query.in_hand is None:
            query.plan()
        node = query.store.status.get()
        return node is not None and len(node.lags) > 9

    eventually(has_trend, "a status with a trend")
    night.finds(command, app, "falling-behind")
    query.end()
    night.tries("a higher maxRecordsPerTrigger")
    query = begin(kinesis, query.checkpoint)
    while query.in_hand is not None or query.plan() is not None:
        query.batch()
    looked(query)
    assert night.is_over(command, app)


@entry("shards-apart")
def test_shards_that_went_apart(night: Night, begin: Begin, command: Command, app: str, clock: Clock) -> None:
    kinesis = MemoryKinesis(shards=2, clock=lambda: int(clock() * 1000))
    full, other = kinesis.open_shards
    for number in range(4):
        kinesis.put(full, b"%d" % number)
    clock.ahead = 3 * HOUR
    for number in (10, 11, 12):
        kinesis.put(other, b"%d" % number)
    query = begin(kinesis, maxShardSkew="off", maxFetchRecordsPerShard="1")
    assert numbers(query.batch()) == [0, 10]
    looked(query)
    night.finds(command, app, "shards-apart")
    query.end()
    night.tries("start the query with `maxShardSkew=auto`: the shards ahead wait")
    query = begin(kinesis, query.checkpoint, maxFetchRecordsPerShard="1")
    # The first one was planned before; the last record that is so old can come together with the next one.
    assert [numbers(query.batch()) for _ in range(3)] == [[1, 11], [2], [3, 12]]
    looked(query)
    assert night.is_over(command, app)


@entry("parent-does-not-end")
def test_a_closed_shard_that_does_not_end(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis, maxFetchTime="50ms")
    # As moto does.
    kinesis.linger(A, 10_000_000)
    kinesis.split(A)
    while query.in_hand is not None or query.plan() is not None:
        query.batch()
    looked(query)
    assert night.is_over(command, app)
    clock.ahead += 41 * 60
    looked(query)
    night.finds(command, app, "parent-does-not-end")
    query.end()
    night.tries("`shardOrdering=none`")
    query = begin(kinesis, query.checkpoint, shardOrdering="none")
    looked(query)
    assert night.is_over(command, app)


@entry("unknown-lag")
def test_a_lag_that_nobody_knows(
    night: Night, begin: Begin, command: Command, app: str, clock: Clock
) -> None:
    kinesis = filled(clock=clock)
    query = begin(kinesis)
    query.batch()
    looked(query)
    clock.ahead += 120
    night.finds(command, app, "unknown-lag", "--max-lag", "5m")
    night.tries("`kinesis-trident status APP` says which it is")
    assert "Spark asks for none" in command("status", app)[1]
    night.tries("once the query looks at the stream again")
    looked(query)
    assert night.is_over(command, app, "--max-lag", "5m")


@entry("max-retrying")
def test_more_failed_records_than_the_limit(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    query = begin(kinesis)
    query.batch(failing=[1, 2])
    looked(query)
    night.finds(command, app, "max-retrying", "--max-retrying", "1")
    night.tries("`kinesis-trident retries APP`")
    assert "ValueError: 1" in command("retries", app)[1]


@entry("max-dead")
def test_more_dead_letters_than_the_limit(night: Night, begin: Begin, command: Command, app: str) -> None:
    kinesis = filled()
    query = begin(kinesis, retryLimit="0")
    query.batch(failing=[1])
    query.planned()
    query.rows()
    query.publish()
    query.commit()
    looked(query)
    night.finds(command, app, "max-dead", "--max-dead", "0")
    night.tries("`kinesis-trident dead-letters APP`")
    assert f"orders/{A}" in command("dead-letters", app)[1]
    night.tries("Raise the limit")
    assert night.is_over(command, app, "--max-dead", "1")
    night.tries("`kinesis-trident dead-letters APP replay --all`")
    assert command("dead-letters", app, "replay", "--all")[0] == 0
    assert numbers(query.batch()) == [1]
    query.plan()
    assert night.is_over(command, app, "--max-dead", "0")


@entry("ConsoleError")
def test_a_command_for_an_application_that_is_not_there(
    night: Night, begin: Begin, command: Command, app: str
) -> None:
    query = begin(filled(), zookeeper_root=f"/{app}")
    query.batch()
    code, out, err = command("status", "order-job", "--root", f"/{app}")
    assert (code, out) == (1, "")
    night.shows(err)
    night.tries("Give one of those")
    assert command("status", app, "--root", f"/{app}")[0] == 0
