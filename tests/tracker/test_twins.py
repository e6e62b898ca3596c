"""Open records as a value against the entries of a list that they were before: `tests/twins/old_tracker`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from hypothesis import given, settings, strategies as st
from thorough import examples
from twins.old_tracker.entries import Entry
from twins.old_tracker.record_tracker import InflightRecordTracker as OldTracker

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.tracker.given_turns import GivenTurn
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import Keys, keys_of_texts, sort_keys
from kinesis_trident.tracker.records import NotDone, Noted, RecordPosition, Run
from kinesis_trident.tracker.requests import bury, cancel, replay
from kinesis_trident.tracker.retry import Backoff, Fates, RetryPolicy
from kinesis_trident.tracker.runs import cut
from kinesis_trident.tracker.settling import TurnFacts, settle

T = TypeVar("T")
S = TypeVar("S")

NOW = 1_700_000_000_000
REASONS = (
    *("A", "A", "A", "B", "B", "B"),
    *("HELD (bolt j)", "HELD_ANEW (bolt k)", "PERMANENT: x", "BEHIND", f"AFTER {NOW + 9_000}: later"),
)
KINESIS = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898


def numbers(r: random.Random) -> Iterator[str]:
    """Records with gaps in between, some in aggregates, of services that fill their numbers up and of others."""
    number, width = r.choice([(5, 0), (10**20, 0), (KINESIS, 0), (99_990, 7)])
    while True:
        number += r.randint(1, 4)
        text = str(number).zfill(width)
        if r.random() < 0.2:
            yield from (f"{text}:{sub}" for sub in range(r.randint(1, 12)))
        else:
            yield text


def backoff(r: random.Random) -> Backoff:
    return r.choice([Backoff(0, 0, 1), Backoff(1, 5_000, 3), Backoff(1_000, 60_000, 2)])


class Steady(random.Random):
    """Dice that fall alike, however often they are thrown."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


class Twins:
    """A shard as it is stored, and what both make of it."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        hold = r.choice([0, 3_000, 30_000])
        self.policy = RetryPolicy(r.randint(0, 3), backoff(r), r.random() < 0.7, hold_ms=hold)
        self.numbers = numbers(r)
        self.records: list[str] = []
        self.shard = OpenShard()
        self.now = NOW
        self.seen = Counter[str]()

    def old(self) -> OldTracker:
        shard = self.shard
        return OldTracker.restore(
            shard.safe,
            tuple(shard.waiting),
            tuple(shard.dead),
            self.policy,
            pending=shard.pending,
            turns=shard.held.in_use(shard.waiting, shard.dead).records,
            through=shard.high,
        )

    def new(self) -> OpenShard:
        shard = self.shard
        return OpenShard.read(
            shard.safe,
            tuple(shard.waiting),
            tuple(shard.dead),
            pending=shard.pending,
            turns=shard.held.in_use(shard.waiting, shard.dead).records,
            through=shard.high,
        )

    def some(self, most: int = 4) -> list[RecordPosition]:
        """Records, and at times what is none: beyond all, or between two."""
        asked = self.r.sample(self.records, min(len(self.records), self.r.randint(1, most)))
        positions = [RecordPosition.parse(text) for text in asked]
        if self.records and self.r.random() < 0.3:
            positions.append(RecordPosition(RecordPosition.parse(self.records[-1]).number + 5))
            positions += self.between()
        return positions

    def between(self) -> list[RecordPosition]:
        return [RecordPosition(RecordPosition.parse(self.r.choice(self.records)).number, 77)]

    def is_gone(self, position: RecordPosition) -> bool:
        """A run that is gone in part and asked for again would be gone in part once more, up to the same record."""
        dead = self.shard.dead
        at = dead.find_holder(position.order)
        return at is not None and any("EXPIRED" in one.text for one in dead[at].failures[-1:])

    def ask(self, old: OldTracker, new: OpenShard) -> OpenShard:
        """People ask for records again, take that back, or give runs up."""
        what = self.r.choice(["replay", "replay", "bury", "take_back"])
        self.seen[what] += 1
        if what == "replay":
            asked = [one for one in self.some() if not self.is_gone(one)]
            refused = old.turns.replay(asked, self.now)
            new, mine = replay(new, asked, self.now)
            assert mine == refused
            return new
        asked = [run.last_position for run in (*new.waiting, *new.dead) if self.r.random() < 0.5]
        asked += self.some(1)
        if what == "bury":
            refused = old.turns.bury(asked)
            new, mine = bury(new, asked)
            assert mine == refused
            return new
        old.turns.take_back(asked)
        return cancel(new, asked)

    def pieces(self, texts: Sequence[str], share: float) -> list[NotDone]:
        """What of neighbours failed: equal ones together or not, with the record before them or another one."""
        found: list[NotDone] = []
        for at, text in enumerate(texts):
            if self.r.random() >= share:
                continue
            reason, index = self.r.choice(REASONS), self.records.index(text)
            before = self.r.choice([None, index - 1, index - 1, self.r.randrange(index) if index else None])
            last = found[-1] if found and at and found[-1].last == texts[at - 1] else None
            if last is not None and last.text == reason and self.r.random() < 0.7:
                found[-1] = NotDone(last.first, text, last.count + 1, reason, last.prev)
            else:
                prev = None if before is None or before < 0 else self.records[before]
                found.append(NotDone(text, text, 1, reason, prev))
        return found

    def serve(self, *, explicit: bool) -> tuple[TurnFacts, list[str]]:
        """Runs that are due come again, in whole or in part, or are gone in part; and the rows of those."""
        r, shard = self.r, self.shard
        due = [(run, False) for run in shard.waiting if run.due <= self.now and r.random() < 0.8]
        due += [(run, True) for run in shard.dead if r.random() < 0.8]
        due.sort(key=lambda one: one[0].last_position)
        served, missing, invalid = list[int](), list[int](), list[int]()
        rows, failed = list[str](), list[NotDone]()
        through, share = None, r.choice([0, 0.2, 0.7, 1])
        for index, (run, is_dead) in enumerate(due):
            at = self.records.index(run.last) + 1 if run.last in self.records else 0
            texts = self.records[at - run.count : at] if run.count <= at else []
            fate = r.choice(["whole", "whole", "whole", "part", "none", "gone", "partly gone"])
            if through is not None:
                served.append(-1)
                continue
            count = run.count
            if not texts or fate == "gone":
                # Of a run that is gone in part the end is not known.
                count = run.count if is_dead else 0
                missing += [index] if not is_dead or r.random() < 0.5 else []
                invalid += [index] if index in missing and r.random() < 0.3 else []
            elif fate == "none":
                count = 0
            elif fate == "partly gone" and count > 1:
                count = r.randint(1, count - 1)
                missing.append(index)
            elif fate == "part" and count > 1:
                count = r.randint(1, count - 1)
                through = texts[count - 1]
            served.append(count)
            if texts and count and not is_dead:
                here = texts[-count:] if index in missing else texts[:count]
                rows += here
                failed += self.pieces(here, share)
        self.seen.update(gone=len(missing), part=through is not None)
        fresh = [next(self.numbers) for _ in range(r.choice([0, 1, 4, 9]))]
        self.records += fresh
        failed += self.pieces(fresh, share)
        r.shuffle(failed)
        if through is None and served and self.records:
            through = r.choice([None, self.records[-1]])
        last = (fresh[-1], len(fresh)) if fresh and not explicit else None
        return TurnFacts(due, served, failed, through, missing, invalid, last), [*rows, *fresh]

    def settle_both(self, one: Callable[[], T], other: Callable[[], S]) -> tuple[T | None, S | None]:
        """Return what both make of a turn; None if both refuse it."""
        errors, found = list[type[Exception] | None](), list[object]()
        for call in (one, other):
            try:
                found.append(call())
                errors.append(None)
            except (ValueError, KeyError) as error:
                errors.append(type(error))
        assert errors[0] is errors[1]
        if errors[0] is not None:
            self.seen["refused"] += 1
            return None, None
        return found[0], found[1]  # type: ignore[return-value]

    def turn(self, old: OldTracker, new: OpenShard) -> OpenShard:
        """A batch that judges its records; now and then its numbers are not those of the shard."""
        before = len(self.records)
        facts, _ = self.serve(explicit=False)
        due, failed = [*facts.due], [*facts.failed]
        if self.r.random() < 0.03 and failed:
            failed.append(self.r.choice(failed))
        if self.r.random() < 0.02 and due:
            due[self.r.randrange(len(due))] = (Run("1", "2", 3, None), False)
        facts = TurnFacts(due, facts.served, failed, facts.through, facts.missing, facts.invalid, facts.fresh)
        seed = self.r.randrange(10**9)
        buried, mine = self.settle_both(
            lambda: old.turns.settle(
                due,
                facts.served,
                failed,
                self.now,
                random.Random(seed),
                through=facts.through,
                missing=facts.missing,
                invalid=facts.invalid,
                fresh=facts.fresh,
            ),
            lambda: settle(new, facts, Fates(self.policy, self.now, random.Random(seed))),
        )
        if buried is None or mine is None:
            del self.records[before:]
            old.__dict__.update(self.old().__dict__)
            return new
        after, letters = mine
        assert [cut(run, count, str(last))[0] for run, count, last in buried] == letters
        assert [(count, str(last)) for _, count, last in buried] == [(one.count, one.last) for one in letters]
        self.seen.update(turns=1, buried=len(letters))
        return after


def stored(shard: OpenShard | OldTracker) -> str:
    return encode(InflightNode(txid=1, waiting=tuple(shard.waiting), dead=tuple(shard.dead))).decode()


def play_turns(seed: int, steps: int) -> Counter[str]:
    twins = Twins(seed)
    for _ in range(steps):
        twins.now += twins.r.choice([0, 1, 999, 70_000])
        old, new = twins.old(), twins.new()
        ask = twins.records and twins.r.random() < 0.2
        new = twins.ask(old, new) if ask else twins.turn(old, new)
        assert [str(old.checkpoint), str(old.high)] == [str(new.safe), str(new.high)]
        assert stored(old) == stored(new)
        assert old.held == new.count
        twins.shard = new
        twins.seen["aggregates"] += any(":" in run.last for run in new.waiting)
    return twins.seen


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_turns_leave_is_stored_as_before_to_the_byte(seed: int) -> None:
    play_turns(seed, 12)


def test_random_turns_meet_all_that_can_be() -> None:
    seen = sum((play_turns(seed, 12) for seed in range(40)), Counter[str]())
    names = ("turns", "gone", "part", "buried", "refused", "aggregates", "replay", "bury", "take_back")
    assert [name for name in names if not seen[name]] == []


Fate = tuple[str, int, int, tuple[Noted, ...]]


def fates_of(shard: OpenShard, records: Sequence[str]) -> set[tuple[str, Fate]]:
    """What is stored of each record that is not done."""
    turns = shard.held.in_use(shard.waiting, shard.dead).records
    found = set[tuple[str, Fate]]()
    for one in shard.pending:
        texts, fate = list(map(str, turns[one.txid].positions)), (one.attempt, one.due, one.failures)
        for start, until in zip(one.open[::2], one.open[1::2], strict=True):
            found |= {(text, ("pending", *fate)) for text in texts[start:until]}
    for state, runs in (("waiting", shard.waiting), ("dead", shard.dead)):
        for run in runs:
            fate = (run.attempt, run.due, run.failures)
            found |= {(text, (state, *fate)) for text in texts_of(run, records)}
    return found


def texts_of(run: Run, records: Sequence[str]) -> list[str]:
    """Of a run that is gone in part the end is not known: it stands for itself."""
    at = records.index(run.last) + 1 if run.last in records else 0
    return list(records[at - run.count : at]) if 0 < run.count <= at else [f"{run.last} and others"]


def entries_of(tracker: OldTracker, records: Sequence[str]) -> set[tuple[str, Fate]]:
    return {
        (text, (entry.state.name.lower(), entry.attempt, entry.due, entry.failures))
        for entry in tracker._runs
        for text in _records_of(entry, records)
    }


def _records_of(entry: Entry, records: Sequence[str]) -> list[str]:
    if entry.rows is None:
        return texts_of(entry.run(), records)
    are_open = entry.is_open()
    return [str(entry.position(at)) for at in range(entry.count) if are_open[at]]


class ExplicitTwins(Twins):
    """A shard whose records are acked by name."""

    txid = 0

    def tell(self, old: OldTracker, new: OpenShard) -> OpenShard:
        """Other processes ack, fail, or ask for time; and time passes."""
        r, now = self.r, self.now
        rng = Steady(r.random())
        texts = [str(position) for position in self.some(12)]
        if self.records and r.random() < 0.4:
            start = r.randrange(len(self.records))
            texts = self.records[start : start + r.randrange(1, 20)]
        keys = sort_keys(keys_of_texts(texts))
        attempt, fates = r.choice([None, None, 1, 2]), Fates(self.policy, now, rng)
        what = r.choice(["ack", "ack", "fail", "reset", "time out"])
        self.seen[what] += 1
        if what == "time out":
            late = old.explicit.time_out(now, rng)
            new, mine = new.time_out(now, fates)
            assert mine == late
        elif what == "ack":
            counts = old.explicit.ack(keys, attempt)
            new, told = new.ack(keys, attempt)
            assert told == counts
            self.seen.update(done=counts.changed, late=counts.late)
        elif what == "fail":
            counts = old.explicit.fail(keys, now, "no", rng, attempt)
            new, told = new.fail(keys, "no", fates, attempt)
            assert told == counts
        else:
            counts = old.explicit.reset(keys, now + 9_000, attempt)
            new, told = new.reset(keys, now + 9_000, attempt)
            assert told == counts
        return new

    def give(self, old: OldTracker, new: OpenShard) -> OpenShard:
        """A batch whose records wait for their acks."""
        before = len(self.records)
        facts, rows = self.serve(explicit=True)
        self.txid += 1
        keys, deadline, rng = keys_of_texts(rows), self.now + 5_000, Steady(self.r.random())
        row = 0

        def hand_over(entry: Entry, count: int, last: object) -> None:
            nonlocal row
            where = {"txid": self.txid, "keys": keys, "start": row, "deadline": deadline}
            old.explicit.hand_over(entry, count, str(last), **where)
            row += count

        def settle_old() -> bool:
            old.turns.settle(
                facts.due,
                facts.served,
                facts.failed,
                self.now,
                rng,
                through=facts.through,
                missing=facts.missing,
                invalid=facts.invalid,
                given=hand_over,
            )
            old.explicit.give(self.txid, keys, row, deadline)
            if rows:
                old.explicit.fail_given(self.txid, facts.failed, self.now, rng)
            return True

        told = TurnFacts(
            *(facts.due, facts.served, facts.failed, facts.through, facts.missing, facts.invalid),
            given=GivenTurn(self.txid, keys, deadline),
        )
        is_settled, mine = self.settle_both(
            settle_old, lambda: settle(new, told, Fates(self.policy, self.now, rng))
        )
        if not is_settled or mine is None:
            del self.records[before:]
            old.__dict__.update(self.old().__dict__)
            return new
        self.seen["turns"] += 1
        return mine[0]


def play_acks(seed: int, steps: int) -> Counter[str]:
    twins = ExplicitTwins(seed)
    for _ in range(steps):
        twins.now += twins.r.choice([0, 1, 999, 6_000])
        old, new = twins.old(), twins.new()
        step = twins.r.choice([twins.give, twins.give, twins.tell, twins.tell, twins.tell, twins.ask])
        new = step(old, new)
        fates = fates_of(new, twins.records)
        assert fates == entries_of(old, twins.records)
        assert [str(old.checkpoint), str(old.high)] == [str(new.safe), str(new.high)]
        assert old.held == new.count
        twins.shard = new
        # The release before reads the same.
        again = twins.old()
        assert entries_of(again, twins.records) == fates
        assert _texts(again.explicit.turns_in_use) == _texts(new.held.in_use(new.waiting, new.dead).records)
    return twins.seen


def _texts(turns: Mapping[int, Keys]) -> dict[int, list[str]]:
    return {txid: list(map(str, keys.positions)) for txid, keys in turns.items()}


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_acks_leave_each_record_as_before(seed: int) -> None:
    play_acks(seed, 15)


def test_random_acks_meet_all_that_can_be() -> None:
    seen = sum((play_acks(seed, 15) for seed in range(40)), Counter[str]())
    names = ("turns", "gone", "part", "ack", "fail", "reset", "time out", "done", "late", "replay", "bury")
    assert [name for name in names if not seen[name]] == []
