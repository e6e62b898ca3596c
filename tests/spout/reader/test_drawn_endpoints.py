"""A reader of a drawn endpoint gets each record once and in order, polled and pushed, whatever errors come between.

What an endpoint answers is drawn from a seed, call by call.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from thorough import examples

from kinesis_trident.spout.batch import range_read
from kinesis_trident.spout.batch.pushed_filters import NO_FILTERS, ShardRange
from kinesis_trident.spout.batch.range_read import Loaded, _RangeRead
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    InUseError,
    IteratorExpiredError,
    KeyAwayError,
    KinesisError,
    Page,
    Shard,
    ShardMissingError,
    StreamInfo,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import (
    TRIM_HORIZON,
    After,
    At,
    AtTimestamp,
    Position,
    ShardEnd,
    parse_position,
)
from kinesis_trident.spout.reader import fan_out, fetch, polling
from kinesis_trident.spout.reader.fan_out import FanOut, LeftEvent, OpenSubscriptions
from kinesis_trident.spout.reader.turn import Bounds
from kinesis_trident.spout.testing import FakeTime, aggregate
from kinesis_trident.tracker.records import RecordPosition, Run

SHARD = "shardId-000000000000"
PARTS = 300
"""Bytes of user records after which the rest of a page of aggregates waits, in these tests."""

MOST = 150
"""Calls of a script, some of which would be read for ever."""

BAD: tuple[KinesisError, ...] = (
    ThrottledError("too fast"),
    Unavailable("500"),
    IteratorExpiredError("old"),
    KeyAwayError("the key is disabled"),
    AccessDeniedError("not allowed"),
    ShardMissingError("no such shard"),
)


@dataclass
class Manners:
    """The probabilities with which a scripted shard does something, and how it is at its end."""

    errors: list[float]
    empty: float
    lag: str
    without_iterator: float
    names_children: bool
    tells_time: bool
    closed: str
    repeats: float

    @property
    def are_true(self) -> bool:
        """Whether an answer without an iterator is of the end, and one without a lag of the tip."""
        return not self.without_iterator and self.lag == "true"


def draw_manners(rng: random.Random) -> Manners:
    """Draw an endpoint: most are quiet about most things."""
    rate = rng.choice([0.0, 0.05, 0.3, 0.8])
    errors = [rate if rng.random() < 0.4 else 0.0, *(rng.choice([0, 0, 0, rate / 2]) for _ in BAD[1:])]
    if errors[2]:
        errors[2] = rng.choice([errors[2], 0.9])
    return Manners(
        errors,
        rng.choice([0.0, 0.0, 0.2, 0.8]),
        rng.choice(["true", "true", "true", "none", "mixed", "zero"]),
        rng.choice([0.0, 0.0, 0.1, 0.5]),
        rng.random() < 0.5,
        rng.random() < 0.8,
        rng.choice(["no", "no", "listed", "ends", "lingers", "forgotten"]),
        rng.choice([0.0, 0.0, 0.3]),
    )


class Script:
    """A shard whose answers are drawn, and a list of the calls to it, with their times."""

    def __init__(self, seed: int) -> None:
        # What the shard has is drawn apart from its answers.
        self.rng, rng = random.Random(seed), random.Random(-1 - seed)
        self.time = FakeTime()
        self.manners = draw_manners(rng)
        self.calls: list[tuple[Any, ...]] = []
        self.records: list[tuple[int, bytes]] = []
        self.users: list[tuple[RecordPosition, bytes]] = []
        """The user records, split."""
        sequence, start = 100, self.time.milliseconds() - 20_000
        for _ in range(rng.choice([0, 1, 5, 30, 120])):
            sequence += rng.choice([1, 1, 7])
            users = [(b"%d-%d" % (sequence, n) * rng.choice([1, 5]), "key") for n in range(rng.randint(2, 5))]
            if rng.random() < 0.2:
                self.records.append((sequence, aggregate(users)))
                self.users += [(RecordPosition(sequence, sub), data) for sub, (data, _) in enumerate(users)]
            else:
                self.records.append((sequence, b"%d" % sequence))
                self.users.append((RecordPosition(sequence), b"%d" % sequence))
        self.start_ms = start

    def note(self, *call: Any) -> None:
        """Note a call; each takes its time."""
        self.calls.append((*call, self.time()))
        self.time.sleep(self.rng.choice([0.0, 0.01, 0.3, 2.0]))
        if len(self.calls) > MOST:
            msg = "enough"
            raise KinesisError(msg)

    def fail(self, only: tuple[type[KinesisError], ...] = (KinesisError,)) -> None:
        """Raise one of the errors of this endpoint, or none."""
        for error, rate in zip(BAD, self.manners.errors, strict=True):
            if isinstance(error, only) and self.rng.random() < rate:
                raise type(error)(f"{error}, {len(self.calls)}")

    def list_shards(self, stream: str, since: object = None) -> list[Shard]:
        """See `Kinesis`."""
        self.note("list_shards")
        self.fail((ThrottledError, Unavailable, AccessDeniedError))
        if self.manners.closed == "forgotten":
            return []
        return [Shard(SHARD, closed=self.manners.closed not in {"no", "lingers"} or self.rng.random() < 0.1)]

    def describe(self, stream: str) -> StreamInfo:
        """See `Kinesis`."""
        self.note("describe")
        return StreamInfo(stream, "arn", 1_600_000_000_000, 24, "ACTIVE", self.time.milliseconds())

    def iterator(self, stream: str, shard: str, position: str) -> str:
        """See `Kinesis`."""
        self.note("iterator", position)
        self.fail((ThrottledError, Unavailable, AccessDeniedError, ShardMissingError))
        return str(self.place(parse_position(position)))

    def place(self, position: Position) -> int:
        """Return how many records are before a position."""
        match position:
            case After(record):
                return sum(at < record.number + (record.sub < 0) for at, _ in self.records)
            case At(record):
                return sum(at < record.number for at, _ in self.records)
            case AtTimestamp(time):
                return min(len(self.records), max(0, (time - self.start_ms) // 100))
        return 0

    def rows(self, position: Position, *, splits: bool) -> list[tuple[RecordPosition, bytes]]:
        """Return all that a reader gets from a position on."""
        every = self.users if splits else [(RecordPosition(at), data) for at, data in self.records]
        if isinstance(position, After | At):
            first, is_in = position.record, isinstance(position, At)
            return [one for one in every if one[0] > first or (is_in and one[0] == first)]
        if isinstance(position, ShardEnd):
            return []
        begin = self.place(position)
        at = self.records[begin][0] if begin < len(self.records) else None
        return [] if at is None else [one for one in every if one[0].number >= at]

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis`."""
        self.note("get_records", iterator, limit)
        self.fail()
        return self.page(int(iterator), limit)

    def page(self, at: int, limit: int) -> Page:
        """Draw the answer at a place: as many as asked for, or fewer, or none."""
        rng, manners = self.rng, self.manners
        begin = max(0, at - 2) if rng.random() < manners.repeats else at
        count = 0 if rng.random() < manners.empty else min(limit, rng.choice([1, 3, 10, 100, limit]))
        found = self.records[begin : begin + count]
        following = min(max(at, begin + len(found)), len(self.records))
        left = len(self.records) - following
        behind: int | None = left * 100
        if manners.lag == "none" or (manners.lag == "mixed" and rng.random() < 0.5):
            behind = None
        elif manners.lag == "zero":
            behind = 0
        is_end = not left and manners.closed in {"ends", "forgotten"}
        no_iterator = is_end or rng.random() < manners.without_iterator
        now = self.time.milliseconds() // 1000 * 1000 if manners.tells_time else None
        records = batch_of(found, self.start_ms)
        closed = is_end and manners.names_children
        return Page(records, None if no_iterator else str(following), behind, records.nbytes, now, closed)


def batch_of(found: list[tuple[int, bytes]], start: int) -> pa.RecordBatch:
    """Return records as a page has them, each 100 ms after the one before."""
    arrivals = [(start + sequence * 100) * 1000 for sequence, _ in found]
    columns = [
        pa.array(["key"] * len(found), pa.string()),
        pa.array([data for _, data in found], pa.binary()),
        pa.array([str(sequence) for sequence, _ in found], pa.string()),
        pa.array([-1] * len(found), pa.int64()),
        pa.array(arrivals, RECORD_SCHEMA.field(4).type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


class Events:
    """The events of a drawn subscription, which arrive as the reader asks: in place of those that a thread reads."""

    def __init__(self, found: ScriptedSubscription, memory: object, most: int) -> None:
        self.script, self.at = found.script, found.at
        self.left = LeftEvent()
        self.is_open = True
        self.arrived: list[Page] = []
        self.most = found.script.rng.choice([0, 1, 3, 20])

    @property
    def waiting(self) -> int:
        """Return the number of events that have arrived."""
        return len(self.arrived)

    def arrive(self) -> None:
        """Let an event arrive; its continuation is that of a record."""
        page = self.script.page(self.at, 10_000)
        if page.next_iterator is not None:
            self.at = int(page.next_iterator)
            before = self.script.records[self.at - 1][0] if self.at else None
            # Before the first record there is none to go on after.
            page = replace(page, next_iterator=str(before if before is not None else 1))
        self.arrived.append(page)

    def next(self, seconds: float) -> Page | None:
        """See `BufferedEvents`."""
        script = self.script
        script.note("event", round(seconds, 6))
        if not self.arrived:
            wait = script.rng.choice([0.0, 0.0, 0.1, 5.0])
            script.time.sleep(min(wait, max(0.0, seconds)))
            if wait > seconds:
                raise TimeoutError
            if script.rng.random() < 0.1:
                self.is_open = False
                return None
            try:
                script.fail((ThrottledError, Unavailable, AccessDeniedError))
                if script.rng.random() < script.manners.errors[0]:
                    msg = "taken over"
                    raise InUseError(msg)
            except KinesisError:
                self.is_open = False
                raise
            self.arrive()
        return self.arrived.pop(0)

    def use(self) -> LeftEvent:
        """See `BufferedEvents`."""
        self.script.note("use")
        left, self.left = self.left, LeftEvent()
        return left

    def leave(self, left: LeftEvent) -> None:
        """See `BufferedEvents`: some more events arrive meanwhile."""
        self.script.note("leave", left.size)
        self.left = left
        for _ in range(self.script.rng.choice([0, 0, 1, 3])):
            self.arrive()
        if self.script.rng.random() < 0.1:
            self.close()

    def close(self) -> None:
        """See `BufferedEvents`."""
        self.is_open = False


@dataclass
class ScriptedSubscription:
    """A subscription that has begun at a place."""

    script: Script
    at: int


class ScriptedSubscriber:
    """Begins subscriptions to a scripted shard, if it is not refused."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def subscribe(self, consumer: str, shard: str, position: str) -> Any:
        """See `Subscriber`."""
        self.script.note("subscribe", position)
        self.script.fail((ThrottledError, Unavailable, AccessDeniedError))
        if self.script.rng.random() < self.script.manners.errors[0]:
            msg = "in use"
            raise InUseError(msg)
        return ScriptedSubscription(self.script, self.script.place(parse_position(position)))


class Life:
    """Some turns of one process that reads a script, drawn apart from it."""

    def __init__(self, seed: int, *, pushed: bool) -> None:
        self.script = Script(seed)
        self.rng = rng = random.Random(10**6 + seed)
        time = self.script.time
        self.limiter = ShardLimiter(
            Budget.of(rng.choice([0.0, 0.2]), rng.choice([1e15, 2_000])),
            clock=time,
            sleep=time.sleep,
            wall=time,
            rng=random.Random(seed),
        )
        self.options = SourceOptions(
            stream_name="orders",
            max_records_per_fetch=rng.choice([1, 3, 10, 10_000]),
            read_timeout=rng.choice([1.0, 30.0]),
            deaggregate=rng.random() < 0.8,
        )
        self.closed = self.script.manners.closed == "listed" or rng.random() < 0.1
        self.kept = OpenSubscriptions()
        self.subscriber = ScriptedSubscriber(self.script) if pushed else None
        self.cursor: ShardCursor | None = None

    def fetcher(self) -> Any:
        fan = None
        if self.subscriber is not None:
            fan = FanOut(
                self.subscriber, "arn", self.kept, is_held=self.rng.random() < 0.2, rng=random.Random(1)
            )
        return fetch.ShardFetcher(
            self.script,  # type: ignore[arg-type]
            "orders",
            SHARD,
            self.options,
            closed=self.closed,
            fan_out=fan,
            limiter=self.limiter,
            cursor=self.cursor,
            wall=self.script.time.milliseconds,
        )

    def draw_bounds(self) -> Bounds:
        choice = self.rng.choice
        upto = self.script.time.milliseconds() + choice([-15_000, -5_000, 0]) if choice([0, 0, 1]) else None
        return Bounds(
            choice([1, 4, 50, 10**9]), choice([30, 10**9]), choice([0.0, 0.5, 5.0, 60.0]), upto=upto
        )

    def draw_position(self) -> Position:
        choice = self.rng.choice
        if not self.script.records or choice([0, 1]):
            # A server that repeats records gives some of before a time, which a reader cannot tell.
            later = 0 if self.script.manners.repeats else choice([0, 1500])
            return choice([TRIM_HORIZON, AtTimestamp(self.script.start_ms + later), ShardEnd()])
        record = choice(self.script.users)[0]
        return choice([After(record), At(record)])

    def draw_runs(self) -> list[Run]:
        plain = [str(at) for at, _ in self.script.users if at.sub < 0]
        places = sorted(self.rng.sample(range(len(plain)), min(3, len(plain))))
        return [Run(first=text, last=text, count=1) for text in (plain[place] for place in places)]

    def turns(self) -> Counter[str]:
        """Read some turns, each of which has the next records and no others; return what has happened."""
        position, seen = self.draw_position(), Counter[str]()
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.2:
                page = self.script.page(self.script.place(position), 3)
                self.cursor = ShardCursor(position, None, page, self.rng.choice([0.0, 0.0, 0.3]))
                if self.rng.random() < 0.5:
                    # The turn cannot call at once.
                    self.limiter.note_refusal()
            fetcher = self.fetcher()
            what, runs = self.rng.choice(["new", "new", "new", "new", "until", "due"]), self.draw_runs()
            try:
                if what == "new" or not runs:
                    turn = fetcher.fetch_new(position, self.draw_bounds())
                    self.check_turn(position, turn)
                    position = turn.end
                    seen["closed"] += turn.closed
                    seen["tip"] += turn.seen is not None
                    seen["ahead"] += turn.ahead is not None
                    seen["records"] += turn.count
                elif what == "until":
                    self.check_until(position, runs[-1].last_position, fetcher)
                else:
                    self.check_due(runs, fetcher)
            except (KinesisError, SpoutError) as error:
                what = type(error).__name__
            self.cursor = fetcher.cursor
            seen[what] += 1
            calls = fetcher.calls
            seen["throttled"] += bool(calls.throttles)
            seen["renewed"] += bool(calls.renewals)
            seen[f"subscribed {calls.subscribing.name}"] += 1
            self.script.time.sleep(self.rng.choice([0.0, 1.0, 400.0]))
        return seen

    def check_turn(self, position: Position, turn: fetch.Turn) -> None:
        wanted = self.script.rows(position, splits=self.options.deaggregate)
        assert rows_of(turn.batches) == wanted[: turn.count]
        assert turn.last == (wanted[turn.count - 1][0] if turn.count else None)
        left = wanted[turn.count :]
        if isinstance(turn.end, After | At):
            assert self.script.rows(turn.end, splits=self.options.deaggregate) == left
        if self.script.manners.are_true:
            assert not (turn.closed and left)

    def check_until(self, position: Position, last: RecordPosition, fetcher: Any) -> None:
        wanted = self.script.rows(position, splits=self.options.deaggregate)
        turn = fetcher.fetch_until(position, last)
        wanted = [one for one in wanted if one[0] <= last]
        assert rows_of(turn.batches) == wanted[: turn.count]
        assert turn.count == len(wanted) or not self.script.manners.are_true

    def check_due(self, runs: list[Run], fetcher: Any) -> None:
        due = fetcher.fetch_due(
            runs,
            self.rng.choice([1, 3]),
            self.rng.choice([None, 10, 10**6]),
            patient=self.rng.random() < 0.3,
        )
        every = dict(self.script.users)
        reached = [run.last_position for run, one in zip(runs, due.records.reached, strict=True) if one]
        found = rows_of(due.records.batches())
        assert found == [(at, every[at]) for at in reached if at in dict(found)]
        if self.script.manners.are_true:
            assert [at for at, _ in found] == reached
            assert not due.missing


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[RecordPosition, bytes]]:
    """Return records by their positions."""
    return [
        (RecordPosition(row["sequenceNumber"], row["subSequenceNumber"]), row["data"])
        for batch in batches
        for row in batch.to_pylist()
    ]


@pytest.fixture
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give large pages of aggregates in parts, and the events of subscriptions without a thread."""
    monkeypatch.setattr(polling, "_PART", PARTS)
    monkeypatch.setattr(fan_out, "BufferedEvents", Events)


@pytest.mark.usefixtures("_in_parts")
@pytest.mark.parametrize("pushed", [False, True], ids=["polled", "pushed"])
def test_turns_have_each_record_once_and_in_order(pushed: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(examples(1_600)):
        try:
            seen += Life(seed, pushed=pushed).turns()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    often = ["new", "until", "due", "records", "closed", "tip", "ahead", "throttled", "renewed"]
    often += ["Unavailable", "AccessDeniedError"]
    often += ["subscribed TAKEN", "subscribed REFUSED", "subscribed BEGUN"] if pushed else []
    assert all(seen[what] >= 3 for what in often), seen


def read_batch(seed: int, patch: pytest.MonkeyPatch) -> str:
    """Read a range of a script, which gives the records of the range once and in order; return how it ended."""
    script, rng = Script(seed), random.Random(10**6 + seed)
    time = script.time
    limiter = ShardLimiter(
        Budget.of(0.2, 1e15), clock=time, sleep=time.sleep, wall=time, rng=random.Random(seed)
    )
    patch.setattr(range_read, "shard_limiter", lambda *_: limiter)
    given = {
        "streamName": "orders",
        "maxRecordsPerFetch": rng.choice(["1", "3", "10000"]),
        "onExhausted": "skip",
        # It waits by the clock of the machine, which stands still in a script.
        "readTimeout": "24h",
    }
    options = SourceOptions.parse_batch(given | {"failOnDataLoss": rng.choice(["true", "false"])})
    now = time.milliseconds()
    record = rng.choice(script.users)[0] if script.users else RecordPosition(7)
    later = TRIM_HORIZON if script.manners.repeats else AtTimestamp(script.start_ms + 1_500)
    start = rng.choice([TRIM_HORIZON, TRIM_HORIZON, later, After(record), At(record)])
    end = rng.choice([ShardEnd(), AtTimestamp(now + rng.choice([1, 5_000])), After(record)])
    part = ShardRange(
        "orders",
        SHARD,
        start,
        end,
        closed=script.manners.closed == "listed" or rng.random() < 0.2,
        others=rng.choice([None, (TRIM_HORIZON, end)]),
    )
    loaded = Loaded(now, 0, {"orders": script.describe("orders")}) if rng.random() < 0.7 else None
    wanted = script.rows(start, splits=True)
    if isinstance(end, After):
        wanted = [one for one in wanted if one[0] <= end.record]
    found, how = [], "end"
    try:
        for piece in _RangeRead(script, options, part, loaded, NO_FILTERS).rows():  # type: ignore[arg-type]
            found += rows_of([piece])
    except (KinesisError, SpoutError) as error:
        how = type(error).__name__
    assert found == wanted[: len(found)], f"seed {seed}"
    # Else what seems to be lost is left out.
    if how == "end" and isinstance(end, After) and script.manners.are_true and options.fail_on_data_loss:
        assert found == wanted, f"seed {seed}"
    return how if found else ""


@pytest.mark.usefixtures("_in_parts")
def test_a_batch_has_each_record_of_its_range_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter(read_batch(seed, monkeypatch) for seed in range(examples(800)))
    assert all(seen[how] >= 3 for how in ("", "end", "Unavailable", "AccessDeniedError")), seen
