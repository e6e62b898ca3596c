"""Outcomes against those that were joined before `Runs`: `tests/twins/old_runs`."""

from __future__ import annotations

import random

from hypothesis import given, settings, strategies as st
from thorough import examples
from twins.old_runs import outcomes as old

from kinesis_trident.bolt.errors import NotOfThisBatchError
from kinesis_trident.bolt.outcomes import outcome
from kinesis_trident.checkpoint.model.nodes import NotDone, Pin, Plan
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.records import Run
from kinesis_trident.tracker.runs import Runs

SHARD = "shardId-000000000000"


def spans(r: random.Random, start: int, stop: int) -> list[tuple[int, int]]:
    """Disjoint ranges in order."""
    cuts = sorted(r.sample(range(start, stop), r.randint(1, (stop - start) // 2)))
    return [(a, r.randint(a, b - 1)) for a, b in zip(cuts, [*cuts[1:], stop], strict=True)]


def turn(r: random.Random, text: str) -> tuple[Plan, Pin]:
    """A turn that has delivered runs below 100 again, of which the last in part, and new records up to 200."""
    retries, dead, served = list[Run](), list[Run](), list[int]()
    through, end = None, 9
    for first, last in spans(r, 10, 99):
        at, end = max(end, first - r.randint(1, 3)), last
        begins = r.random() < 0.8
        prev = text.format(at) if not begins or r.random() < 0.6 else None
        run = Run(text.format(first) if begins else "", text.format(last), last - first + 1, prev)
        is_dead = r.random() < 0.2
        (dead if is_dead else retries).append(run)
        if through is not None:
            continue
        if run.count > 1 and not is_dead and r.random() < 0.1:
            served.append(r.randint(1, run.count - 1))
            through = text.format(first + served[-1] - 1)
        else:
            served.append(r.choice([run.count, run.count, 0, -1]))
    start = r.choice(
        ["TRIM_HORIZON", f"AFTER_SEQUENCE_NUMBER {text.format(99)}", f"AT_SEQUENCE_NUMBER {text.format(100)}"]
    )
    plan = Plan(
        txid=7,
        plan="p",
        streams={"orders": 1},
        positions={SHARD: start},
        read=(SHARD,),
        retries={SHARD: tuple(retries)} if retries else {},
        dead={SHARD: tuple(dead)} if dead else {},
    )
    last = text.format(r.randint(100, 200)) if r.random() < 0.8 else None
    return plan, Pin(
        txid=7,
        plan="p",
        epoch=1,
        start=start,
        end="AFTER_SEQUENCE_NUMBER 200",
        last=last,
        count=100,
        fresh=100,
        digest="",
        xor=0,
        served=tuple(served),
        through=through,
    )


def pieces(r: random.Random, text: str) -> list[NotDone]:
    """Failures in any order, each with the record before it or not."""
    made = [
        NotDone(
            text.format(first),
            text.format(last),
            last - first + 1,
            r.choice("AB"),
            text.format(first - 1) if r.random() < 0.3 else None,
        )
        for first, last in spans(r, 10, 210)
    ]
    r.shuffle(made)
    return made


@settings(max_examples=examples(600))
@given(st.integers(0, 2**32))
def test_outcomes_are_equal(seed: int) -> None:
    r = random.Random(seed)
    text = r.choice(["{}", "{:020d}", "4959{:052d}"])
    plan, pin = turn(r, text)
    failed = {SHARD: pieces(r, text)}
    refused = {
        f"orders/{SHARD}:{text.format(r.randint(10, 205))}": Failure.said("full")
        for _ in range(r.choice([0, 1, 5]))
    }
    found = list[object]()
    for join in (outcome, old.outcome):
        try:
            found.append(join(plan, {f"orders/{SHARD}": SHARD}, {SHARD: pin}, failed, refused))
        except NotOfThisBatchError as error:
            found.append(str(error))
    assert found[0] == found[1]
    unreadable = sorted(pieces(r, text), key=lambda piece: int(piece.last))
    joined = Runs.sort(unreadable).union(failed[SHARD])
    assert list(joined) == old.join_outcomes(unreadable, failed[SHARD])
