"""What has failed for good is delivered once, what asks for it comes later, and what is too old is not delivered."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import Lives, Query, Row, SparkCheckpoint, numbers

from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import BatchOutcome, NotDone, Pin
from kinesis_trident.console.redelivery import deliver_again, find_requests
from kinesis_trident.spout.errors import ExhaustedError, TurnChangedError
from kinesis_trident.spout.failed_records.dead_letters import DeadLetter, read_dead_letters
from kinesis_trident.spout.query_by_hand import QueryByHand
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.tracker.failure import Failure, Kind, failure_of, text_of

A = "shardId-000000000000"
GONE = text_of(Failure.said("no such customer", retry=False))
LATER = text_of(Failure.said("busy", after="10m"))


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def kinesis(time: FakeTime) -> MemoryKinesis:
    return MemoryKinesis("orders", created=1_600_000_000_000, clock=time.milliseconds)


@pytest.fixture
def lives(make_lives: Callable[..., Lives], time: FakeTime) -> Lives:
    made = make_lives(retryLimit="3")
    made.clock = time
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "letters"


def put(kinesis: MemoryKinesis, *says: int) -> dict[int, int]:
    """Write records that say numbers; return their sequence numbers."""
    return {number: kinesis.put(A, b"%d" % number) for number in says}


def letters(folder: Path) -> dict[str, DeadLetter]:
    """Return the letters of a folder by messageId, which each has once."""
    found = list(read_dead_letters(folder)) if folder.exists() else []
    assert len({letter.message_id for letter in found}) == len(found)
    return {letter.message_id: letter for letter in found}


def judge(query: Query, failing: dict[int, str]) -> list[int]:
    """Run batches until one has rows, of which some fail, and return what they say; retries of the policy are due."""
    for _ in range(4):
        if query.in_hand is None:
            query._clock.sleep(2)  # type: ignore[attr-defined]
            if query.plan() is None:
                continue
        rows = query.rows()
        QueryByHand.publish(query, [row for row in rows if row[0] in failing], lambda row: failing[row[0]])
        query.commit()
        if rows:
            return numbers(rows)
    raise AssertionError(query.store.shards.inflight())


def finish(query: Query) -> list[Row]:
    """Run batches until nothing is left; return all rows."""
    rows: list[Row] = []
    for _ in range(6):
        query._clock.sleep(2)  # type: ignore[attr-defined]
        if query.in_hand is not None or query.plan() is not None:
            rows += query.batch()
    return rows


def replay(query: Query, sequence: int) -> int:
    """Ask for a record again, as `dead-letters replay` does; return how many are."""
    wanted = [MessageId.parse(f"orders/{A}:{sequence}")]
    return deliver_again(find_requests([query.store], wanted), what="replay")


def test_what_has_failed_for_good_is_in_the_dead_letter_with_the_next_batch(
    lives: Lives, kinesis: MemoryKinesis, folder: Path
) -> None:
    found = put(kinesis, *range(5))
    query = lives.begin(kinesis, deadLetter=str(folder), onExhausted="deadLetter")
    assert judge(query, {1: GONE, 2: "ValueError: 2"}) == [0, 1, 2, 3, 4]
    assert judge(query, {2: "ValueError: 2"}) == [2]
    [letter] = letters(folder).values()
    assert (letter.message_id, letter.data, letter.attempts) == (f"orders/{A}:{found[1]}", b"1", 1)
    assert [reason.reason for reason in letter.reasons] == ["PERMANENT: no such customer"]
    finish(query)
    assert query.store.shards.checkpoints()[A].checkpoint == str(found[4])


def test_skip_skips_it(lives: Lives, kinesis: MemoryKinesis) -> None:
    found = put(kinesis, 0, 1)
    query = lives.begin(kinesis, onExhausted="skip")
    judge(query, {0: GONE})
    assert finish(query) == []
    [node] = query.store.shards.dead_letters().values()
    assert (node.target, node.last[0].message_id) == ("skip", f"orders/{A}:{found[0]}")


def test_fail_stops_the_query_and_what_its_error_says_goes_on(lives: Lives, kinesis: MemoryKinesis) -> None:
    found, checkpoint = put(kinesis, 0, 1), SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint, onExhausted="fail")
    judge(query, {0: GONE})
    with pytest.raises(
        ExhaustedError, match=rf"record {found[0]}: failed 1 time .*PERMANENT: no such customer"
    ):
        finish(query)
    assert (
        deliver_again(
            find_requests([query.store], [MessageId.parse(f"orders/{A}:{found[0]}")]), what="replay"
        )
        == 1
    )
    query.end()
    query = lives.begin(kinesis, checkpoint, onExhausted="fail")
    assert numbers(finish(query)) == [0]


def test_an_option_names_what_is_not_retried(lives: Lives, kinesis: MemoryKinesis, folder: Path) -> None:
    put(kinesis, 0, 1, 2)
    query = lives.begin(
        kinesis, deadLetter=str(folder), onExhausted="deadLetter", noRetryFor="KeyError,NOT_ACKED"
    )
    judge(query, {0: "KeyError: 'x' (in map(parse))", 1: "NOT_ACKED (bolt split)", 2: "ValueError: 2"})
    assert judge(query, {}) == [2]
    assert sorted(letter.reasons[0].reason for letter in letters(folder).values()) == [
        "KeyError: 'x' (in map(parse))",
        "NOT_ACKED (bolt split)",
    ]


@pytest.mark.parametrize("stage", ["logged", "read", "published", "committed", "settled", "lettered"])
def test_a_replay_of_its_batch_comes_to_the_same(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, stage: str
) -> None:
    """A life ends at each step of the batch in which a record fails for good, and of the one that has its letter."""
    found, checkpoint = put(kinesis, *range(4)), SparkCheckpoint()
    options = {"deadLetter": str(folder), "onExhausted": "deadLetter"}

    def step(query: Query, until: str) -> None:
        query.planned()
        if until == "logged":
            return
        rows = query.rows()
        if until == "read":
            return
        failing = [row for row in rows if row[0] == 1 and row[2] == 1]
        QueryByHand.publish(query, failing, lambda _: GONE)
        if until == "published":
            return
        query.commit()

    query = lives.begin(kinesis, checkpoint, **options)
    step(query, "committed" if stage in ("settled", "lettered") else stage)
    if stage in ("settled", "lettered"):
        query.planned()
    if stage == "lettered":
        query.rows()
    query.end()
    query = lives.begin(kinesis, checkpoint, **options)
    if query.in_hand is not None and stage not in ("settled", "lettered"):
        rows = query.rows()
        assert numbers(rows) == [0, 1, 2, 3]
        # An outcome that is there counts.
        QueryByHand.publish(query, [row for row in rows if row[0] == 1], lambda _: GONE)
        query.commit()
    assert finish(query) == []
    [letter] = letters(folder).values()
    assert (letter.message_id, letter.attempts) == (f"orders/{A}:{found[1]}", 1)
    assert query.store.shards.checkpoints()[A].checkpoint == str(found[3])


def test_its_letter_is_delivered_again_and_is_one_again(
    lives: Lives, kinesis: MemoryKinesis, folder: Path
) -> None:
    found = put(kinesis, 0, 1)
    query = lives.begin(kinesis, deadLetter=str(folder), onExhausted="deadLetter")
    judge(query, {0: GONE})
    finish(query)
    assert replay(query, found[0]) == 1
    query.planned()
    rows = query.rows()
    assert [row[:3] for row in rows] == [(0, f"orders/{A}:{found[0]}", 1)]
    QueryByHand.publish(query, rows, lambda _: GONE)
    query.commit()
    finish(query)
    assert [one.attempts for one in read_dead_letters(folder)] == [1, 1]


def test_what_asks_for_it_comes_later_also_after_a_restart_and_its_retries_are_counted(
    lives: Lives, kinesis: MemoryKinesis, time: FakeTime
) -> None:
    put(kinesis, 0, 1, 2)
    checkpoint = SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint, retryLimit="1")
    judge(query, {1: LATER, 2: "ValueError: 2"})
    time.sleep(5)
    assert judge(query, {}) == [2]
    query.end()
    # The longest delay of the policy is a millisecond: a time beyond it would be that of a clock that was ahead.
    query = lives.begin(kinesis, checkpoint, retryLimit="1")
    query.plan()
    [node] = query.store.shards.inflight().values()
    [run] = node.waiting
    assert run.failures[-1].reason == "AFTER 600s: busy"
    assert 0 <= run.due - (run.failures[-1].time + 600_000) < 1_000
    time.sleep(500)
    assert query.plan() is None
    time.sleep(100)
    assert judge(query, {1: LATER}) == [1]
    assert finish(query) == []
    [letters_of] = query.store.shards.dead_letters().values()
    assert letters_of.count == 1


# What has arrived an hour apart is one turn.
OLD = {"maxRecordAge": "1h", "maxShardSkew": "off"}


@pytest.mark.parametrize("spout", ["opaque", "transactional", "nontransactional"])
def test_what_is_too_old_when_it_is_read_is_not_delivered(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, time: FakeTime, spout: str
) -> None:
    found = put(kinesis, *range(6))
    time.sleep(3_601)
    found |= put(kinesis, *range(6, 9))
    query = lives.begin(kinesis, deadLetter=str(folder), onExhausted="deadLetter", spout=spout, **OLD)
    query.planned()
    rows = query.rows()
    assert numbers(rows) == [6, 7, 8]
    [pin] = pins_of(query)
    # Neighbours are one piece, however many.
    assert [(piece.first, piece.last, piece.count, piece.text) for piece in pin.unreadable] == [
        (str(found[0]), str(found[5]), 6, "AGED")
    ]
    query.publish()
    query.commit()
    assert finish(query) == []
    written = letters(folder)
    assert [letter.data for letter in written.values()] == [b"%d" % number for number in range(6)]
    assert {letter.attempts for letter in written.values()} == {1}
    assert {reason.reason for letter in written.values() for reason in letter.reasons} == {"AGED"}
    assert query.store.shards.checkpoints()[A].checkpoint == str(found[8])


def pins_of(query: Query) -> list[Pin]:
    assert query.in_hand is not None
    return [*query.store.batches.get_pins(query.in_hand.txid, query.in_hand.shards).values()]


def test_a_replay_delivers_what_was_young_enough_then(
    lives: Lives, kinesis: MemoryKinesis, time: FakeTime
) -> None:
    put(kinesis, 0, 1)
    time.sleep(1_800)
    put(kinesis, 2, 3)
    time.sleep(1_801)
    checkpoint = SparkCheckpoint()
    query = lives.begin(kinesis, checkpoint, **OLD)
    query.planned()
    rows = query.rows()
    assert numbers(rows) == [2, 3]
    query.end()
    time.sleep(7_200)
    # Also where the option is another one by then.
    for options in (OLD, OLD | {"maxRecordAge": "999h"}, {"maxShardSkew": "off"}):
        query = lives.begin(kinesis, checkpoint, **options)
        assert query.rows() == rows
        query.end()
    query = lives.begin(kinesis, checkpoint, **OLD)
    assert query.batch() == rows
    assert finish(query) == []


def test_a_retry_that_is_too_old_when_it_is_due_is_not_delivered(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, time: FakeTime
) -> None:
    found = put(kinesis, *range(4))
    query = lives.begin(kinesis, deadLetter=str(folder), onExhausted="deadLetter", **OLD)
    judge(query, {1: LATER, 2: "ValueError: 2"})
    assert judge(query, {2: LATER}) == [2]
    # A delay begins where the batch is settled.
    assert query.plan() is None
    time.sleep(3_601)
    found |= put(kinesis, 4)
    assert judge(query, {}) == [4]
    finish(query)
    assert {one: [reason.reason for reason in letter.reasons] for one, letter in letters(folder).items()} == {
        f"orders/{A}:{found[1]}": ["AFTER 600s: busy", "AGED"],
        f"orders/{A}:{found[2]}": ["ValueError: 2", "AFTER 600s: busy", "AGED"],
    }


def test_the_letter_of_a_record_that_is_too_old_is_delivered_once_somebody_asks_for_it(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, time: FakeTime
) -> None:
    found = put(kinesis, 0, 1)
    time.sleep(3_601)
    put(kinesis, 2)
    query = lives.begin(kinesis, deadLetter=str(folder), onExhausted="deadLetter", **OLD)
    assert numbers(finish(query)) == [2]
    for _ in range(2):
        assert (
            deliver_again(
                find_requests([query.store], [MessageId.parse(f"orders/{A}:{found[0]}")]), what="replay"
            )
            == 1
        )
        assert judge(query, {0: "ValueError: 0"}) == [0]
        # Nobody has asked for this retry.
        assert finish(query) == []
    assert [[reason.reason for reason in letter.reasons] for letter in read_dead_letters(folder)] == [
        ["AGED"],
        ["AGED"],
        ["ValueError: 0", "AGED"],
        ["ValueError: 0", "AGED"],
    ]


def test_a_retry_of_which_the_first_ones_expire_before_its_replay_is_settled(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service says that arrivals are approximate: the first of the run is young enough, and is gone then."""
    found, checkpoint, options = put(kinesis, 0), SparkCheckpoint(), {"deadLetter": str(folder), **OLD}
    time.sleep(3_000)
    found |= put(kinesis, 1)
    with monkeypatch.context() as patched:
        patched.setattr(kinesis, "_clock", lambda: time.milliseconds() - 3_000_000)
        found |= put(kinesis, 2, 3)
    query = lives.begin(kinesis, checkpoint, onExhausted="deadLetter", failOnDataLoss="false", **options)
    plan = query.planned()
    query.rows()
    piece = NotDone(str(found[1]), str(found[3]), 3, LATER, str(found[0]))
    epoch = query._say_judging(plan)
    outcome = BatchOutcome(txid=plan.txid, plan=plan.plan, epoch=epoch, not_done={A: (piece,)})
    query.store.batches.put_outcome(outcome, epoch)
    query.commit()
    assert query.plan() is None
    time.sleep(700)
    query.planned()
    assert numbers(query.rows()) == [1]
    query.end()
    kinesis.trim(A, found[2])
    query = lives.begin(kinesis, checkpoint, onExhausted="deadLetter", failOnDataLoss="false", **options)
    assert query.rows() == []
    query.publish()
    query.commit()
    assert finish(query) == []
    assert {one: [letter.reasons[-1].reason, letter.data] for one, letter in letters(folder).items()} == {
        f"orders/{A}:{found[1]}": ["EXPIRED", None],
        f"orders/{A}:{found[3]}": ["AGED", b"3"],
    }


def test_with_fail_a_record_that_is_too_old_stops_the_query(
    lives: Lives, kinesis: MemoryKinesis, time: FakeTime
) -> None:
    found = put(kinesis, 0)
    time.sleep(3_601)
    query = lives.begin(kinesis, onExhausted="fail", **OLD)
    with pytest.raises(ExhaustedError, match=rf"record {found[0]}: failed 1 time .*, last: AGED"):
        finish(query)


def test_records_out_of_order_are_judged_each_by_itself_up_to_a_bound(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service says that arrivals are approximate."""
    ages = itertools.cycle([3_700, 0, 3_700])
    start, aged, young = time(), [], []
    for number in range(30):
        age = next(ages)
        with monkeypatch.context() as patched:
            patched.setattr(kinesis, "_clock", lambda age=age: round((start + 3_700 - age) * 1000))
            put(kinesis, number)
        (aged if age else young).append(number)
    time.sleep(3_700)
    monkeypatch.setattr("kinesis_trident.spout.reader.rows._MOST_AGED", 4)
    query = lives.begin(kinesis, deadLetter=str(folder), onExhausted="deadLetter", **OLD)
    query.planned()
    rows = query.rows()
    [pin] = pins_of(query)
    assert [piece.count for piece in pin.unreadable] == [1, 2, 2, 2]
    assert numbers(rows) == sorted({*range(30)} - {*aged[:7]})
    query.publish()
    query.commit()
    finish(query)
    assert len(letters(folder)) == 7


def test_with_explicit_acks_it_fails_at_once(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, time: FakeTime
) -> None:
    found = put(kinesis, 0, 1)
    time.sleep(3_601)
    put(kinesis, 2)
    query = lives.begin(kinesis, ackMode="explicit", deadLetter=str(folder), onExhausted="deadLetter", **OLD)
    query.planned()
    assert numbers(query.rows()) == [2]
    query.commit()
    query.planned()
    query.rows()
    assert set(letters(folder)) == {f"orders/{A}:{found[number]}" for number in (0, 1)}


def test_a_nontransactional_task_that_found_others_too_old_is_tried_again(
    lives: Lives, kinesis: MemoryKinesis, time: FakeTime
) -> None:
    """Its rows lack a record that the pin counts as delivered."""
    put(kinesis, 0)
    time.sleep(2_000)
    put(kinesis, 1)
    time.sleep(1_000)
    query = lives.begin(kinesis, spout="nontransactional", **OLD)
    query.planned()
    [part] = query.parts()
    early, late = (TurnReader(part, kinesis, query.store, look_first=False).rows() for _ in range(2))
    assert next(early).column("data").to_pylist() == [b"0", b"1"]
    time.sleep(700)
    assert next(late).column("data").to_pylist() == [b"1"]
    assert list(early) == []
    with pytest.raises(TurnChangedError, match="Retry the task, which then reads the same records"):
        list(late)


def test_the_time_is_that_of_the_server_where_it_says_it(
    lives: Lives, kinesis: MemoryKinesis, time: FakeTime
) -> None:
    put(kinesis, 0)
    query = lives.begin(kinesis, **OLD)
    query.planned()
    [part] = query.parts()
    reader = TurnReader(
        part, kinesis, query.store, look_first=False, wall=lambda: time.milliseconds() + 10**9
    )
    assert sum(batch.num_rows for batch in reader.rows()) == 1


def test_a_batch_read_has_no_retries_and_says_so(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    from kinesis_trident.spout.options.source import SourceOptions

    given = {
        "streamName": "orders",
        "endpointUrl": "http://localhost:1",
        "noRetryFor": "A",
        "maxRecordAge": "3h",
    }
    with caplog.at_level(logging.WARNING):
        SourceOptions.parse_batch(given)
    assert caplog.messages == [
        f"option {name} has no effect in a batch (spark.read)" for name in ("noRetryFor", "maxRecordAge")
    ]


def test_a_release_before_tries_again_what_it_need_not_and_loses_nothing(
    lives: Lives, kinesis: MemoryKinesis, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To it a text that does not say `HELD` is a reason like any other: `tests/checkpoint/model/releases`."""
    found, checkpoint = put(kinesis, *range(4)), SparkCheckpoint()
    options = {"deadLetter": str(folder), "onExhausted": "deadLetter", "retryLimit": "1"}
    query = lives.begin(kinesis, checkpoint, **options)
    query.planned()
    rows = query.rows()
    said = {0: GONE, 1: LATER, 2: text_of(Failure(Kind.AGED))}
    QueryByHand.publish(query, [row for row in rows if row[0] in said], lambda row: said[row[0]])
    query.commit()
    query.end()
    with monkeypatch.context() as before:
        before.setattr("kinesis_trident.tracker.retry.parse", failure_of)
        query = lives.begin(kinesis, checkpoint, **options)
        assert judge(query, {0: "ValueError: 0"}) == [0, 1, 2]
        query.end()
    query = lives.begin(kinesis, checkpoint, **options)
    finish(query)
    assert {one: [reason.reason for reason in letter.reasons] for one, letter in letters(folder).items()} == {
        f"orders/{A}:{found[0]}": ["PERMANENT: no such customer", "ValueError: 0"]
    }
    assert query.store.shards.checkpoints()[A].checkpoint == str(found[3])
