"""Random lives of a shard that loses records anywhere: what is stored can be read back, and nothing is passed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings, strategies as st
from thorough import examples

from kinesis_trident.checkpoint.model.codec import encode, read
from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.tracker.given_turns import GivenTurn
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import keys_of_texts, sort_keys
from kinesis_trident.tracker.records import NotDone, RecordPosition, Run
from kinesis_trident.tracker.requests import bury, cancel, replay
from kinesis_trident.tracker.retry import Backoff, Fates, RetryPolicy
from kinesis_trident.tracker.settling import TurnFacts, settle

Span = tuple[RecordPosition, bool, RecordPosition]


def span(run: Run) -> Span:
    """Where a run begins, whether with that record or after it, and where it ends."""
    return RecordPosition.parse(run.first or run.prev or ""), bool(run.first), run.last_position


def is_in(one: RecordPosition, where: Span) -> bool:
    first, is_first, last = where
    return (first <= one if is_first else first < one) and one <= last


def facts(shard: OpenShard) -> tuple[object, ...]:
    turns = {txid: list(map(str, keys.positions)) for txid, keys in shard.held.records.items()}
    runs = [(list(some), list(some.lasts)) for some in (shard.waiting, shard.dead)]
    return shard.safe, shard.high, runs, shard.pending, turns


class Life:
    """A shard, the records of its stream, and those that no delivery has finished."""

    def __init__(self, seed: int, *, explicit: bool) -> None:
        self.r = random.Random(seed)
        self.explicit = explicit
        retries = self.r.randint(0, 3)
        self.policy = RetryPolicy(retries, Backoff(0, 0, 1), self.r.random() < 0.7)
        self.shard = OpenShard()
        self.records: list[RecordPosition] = []
        self.lost: set[RecordPosition] = set()
        self.open: set[RecordPosition] = set()
        self.done: set[RecordPosition] = set()
        self.txid = self.number = 0
        self.seen = Counter[str]()

    @property
    def fates(self) -> Fates:
        return Fates(self.policy, 0, random.Random(0))

    def fresh(self) -> list[RecordPosition]:
        new = list[RecordPosition]()
        for _ in range(self.r.choice([0, 1, 3, 6])):
            self.number += self.r.randint(1, 3)
            parts = self.r.choice([0, 0, 0, 3])
            new += [RecordPosition(self.number, sub) for sub in (range(parts) if parts else (-1,))]
        return new

    def there(self, run: Run) -> list[RecordPosition]:
        where = span(run)
        return [one for one in self.records if one not in self.lost and is_in(one, where)]

    def lose(self) -> None:
        """The oldest records leave the stream, or some in the middle of runs, or the last ones of runs."""
        runs = [self.there(run) for run in (*self.shard.waiting, *self.shard.dead)]
        oldest = self.records[: self.r.randint(0, len(self.records))]
        middle, last = (
            [one for some in runs for one in some[which]] for which in (slice(1, 3), slice(-1, None))
        )
        self.lost.update(self.r.choice([oldest, middle, last]))

    def failed(self, some: Sequence[RecordPosition]) -> list[NotDone]:
        """What fails of neighbours, as a bolt reports it."""
        pieces, share = list[NotDone](), self.r.choice([0, 0.3, 0.8, 1])
        for at, one in enumerate(some):
            if self.r.random() >= share:
                continue
            text = str(one)
            if pieces and at and pieces[-1].last == str(some[at - 1]) and self.r.random() < 0.7:
                last = pieces.pop()
                pieces.append(NotDone(last.first, text, last.count + 1, "A", last.prev))
            else:
                pieces.append(NotDone(text, text, 1, "A", str(some[at - 1]) if at else None))
        return pieces

    def judge(self, some: Sequence[RecordPosition], pieces: Sequence[NotDone]) -> None:
        spans = [(RecordPosition.parse(one.first), True, RecordPosition.parse(one.last)) for one in pieces]
        for one in some:
            if self.explicit or any(is_in(one, where) for where in spans):
                self.open.add(one)
            else:
                self.open.discard(one)

    def turn(self) -> None:
        """Due runs come again as far as they are there, dead ones are dead-lettered, and new records come."""
        r = self.r
        due = [(run, False) for run in self.shard.waiting if r.random() < 0.8]
        due += [(run, True) for run in self.shard.dead if r.random() < 0.4]
        due.sort(key=lambda one: one[0].last_position)
        served, missing, invalid = list[int](), list[int](), list[int]()
        rows, pieces, through = list[RecordPosition](), list[NotDone](), None
        for index, (run, is_dead) in enumerate(due):
            here = self.there(run)
            if through is not None or r.random() < 0.05:
                served.append(-1)
                continue
            assert len(here) <= run.count
            is_whole = len(here) == run.count
            if len(here) > 1 and r.random() < 0.2:
                here = here[: r.randint(1, len(here) - 1)]
                through = str(here[-1])
                self.seen["read in part, without lost ones"] += not is_whole
            elif not is_whole:
                self.seen["gone at its end"] += bool(here) and here[-1] != run.last_position
                missing.append(index)
                invalid += [index] if r.random() < 0.2 else []
                self.seen["gone in part"] += bool(here) and not is_dead
                self.seen["gone in part again"] += bool(here) and run.first == run.last
            served.append(len(here))
            if is_dead:
                where = (*span(run)[:2], here[-1] if through else run.last_position)
                self.open = {one for one in self.open if not is_in(one, where)}
                continue
            some = self.failed(here)
            self.judge(here, some)
            rows += here
            pieces += some
        new = self.fresh() if through is None else []
        self.records += new
        some = self.failed(new)
        self.judge(new, some)
        self.txid += 1
        given = [*rows, *new]
        if self.explicit and r.random() < 0.1:
            # A replay of the turn, which has an outcome, finds some of its records no more.
            self.lost.update(r.sample(given, r.randint(0, max(0, len(given) - 1))))
        left = [one for one in given if one not in self.lost]
        self.seen["gone at a replay"] += 0 < len(left) < len(given)
        keys = keys_of_texts(list(map(str, left)))
        is_given = GivenTurn(self.txid, keys, 5, len(given) - len(left))
        facts = TurnFacts(
            due,
            served,
            [*pieces, *some],
            through,
            missing,
            invalid,
            (str(new[-1]), len(new)) if new and not self.explicit else None,
            is_given if self.explicit else None,
        )
        self.shard, _ = settle(self.shard, facts, self.fates)

    def named(self) -> list[RecordPosition]:
        """Records, and what is none."""
        some = self.r.sample(self.records, min(len(self.records), self.r.randint(0, 4)))
        some += [run.last_position for run in self.shard.dead if self.r.random() < 0.5]
        none = RecordPosition(self.r.randint(0, self.number), self.r.choice([-1, 1, 77]))
        return [*some, none] if self.r.random() < 0.4 else some

    def ask(self) -> None:
        """A person asks for records again, takes that back, or gives runs up."""
        what = self.r.choice(["replay", "replay", "replay", "bury", "take back"])
        self.seen[what] += 1
        if what == "replay":
            self.shard, _ = replay(self.shard, self.named(), 0)
        elif what == "bury":
            self.shard, _ = bury(self.shard, [run.last_position for run in self.shard.waiting][::2])
        else:
            some = self.named()
            for one in some:
                self.open -= {one}
            for run in (*self.shard.waiting, *self.shard.dead):
                self.open -= (
                    {one for one in self.open if is_in(one, span(run))} if run.count <= len(some) else set()
                )
            self.shard = cancel(self.shard, some)

    def tell(self) -> None:
        """Records are acked, or fail, by name."""
        some = self.named()
        keys = sort_keys(keys_of_texts(list(map(str, some))))
        what = self.r.choice(["ack", "ack", "fail", "time out"])
        self.seen[what] += 1
        if what == "ack":
            self.shard, _ = self.shard.ack(keys)
            self.open -= {*some}
        elif what == "fail":
            self.shard, _ = self.shard.fail(keys, "no", self.fates)
        else:
            self.shard, _ = self.shard.time_out(9, self.fates)

    def check(self) -> None:
        """What is stored can be read, none of it is in one place with another, and all that is open is in it."""
        shard = self.shard
        runs, pending = (tuple(shard.waiting), tuple(shard.dead)), shard.pending
        kept = shard.stored(*runs)
        turns = kept.held.records
        stored = read(
            encode(InflightNode(txid=1, waiting=runs[0], dead=runs[1], pending=pending, turns=tuple(turns))),
            InflightNode,
        )
        again = OpenShard.read(
            shard.safe, stored.waiting, stored.dead, pending=stored.pending, turns=turns, through=shard.high
        )
        assert (again.safe, again.high, again.count) == (shard.safe, shard.high, shard.count)
        # Who has stored it need not read it.
        kept = kept.resume(shard.high)
        assert facts(kept) == facts(again)
        spans = [span(run) for run in (*shard.waiting, *shard.dead)]
        for one in shard.pending:
            rows = turns[one.txid].positions
            bounds = zip(one.open[::2], one.open[1::2], strict=True)
            spans += [(rows[at], True, rows[at]) for start, until in bounds for at in range(start, until)]
        spans.sort(key=lambda where: where[2])
        for (_, _, last), (first, is_first, _) in pairwise(spans):
            assert last < first or (last == first and not is_first)
        self.done |= {*self.records} - self.open
        if self.policy.dead_letter:
            left = self.open - self.lost
            assert [one for one in left if not any(is_in(one, where) for where in spans)] == []
            assert [one for one in left - self.done if shard.safe is not None and one <= shard.safe] == []
        self.shard = (kept, again)[self.number % 2]


def play(seed: int, *, explicit: bool) -> Counter[str]:
    life = Life(seed, explicit=explicit)
    for _ in range(14):
        if not life.records or life.r.random() < 0.5:
            life.turn()
        else:
            life.r.choice([life.ask, life.ask, life.lose, life.tell])()
        life.check()
    return life.seen


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**32), explicit=st.booleans())
def test_what_is_stored_of_any_life_can_be_read_back(seed: int, explicit: bool) -> None:
    play(seed, explicit=explicit)


def test_random_lives_meet_all_that_can_be() -> None:
    seen = sum(
        (play(seed, explicit=explicit) for seed in range(60) for explicit in (False, True)), Counter[str]()
    )
    names = ("gone in part", "gone in part again", "gone at its end", "read in part, without lost ones")
    names += ("gone at a replay", "replay", "bury", "take back", "ack", "fail", "time out")
    assert [name for name in names if not seen[name]] == []
