"""The acker over `Sums` against the acker that it was before: `tests/twins/old_acker`."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings, strategies as st
from thorough import examples
from twins.old_acker.acker import Acker as OldAcker

from kinesis_trident.tracker.acker import Acker

LEAST, MOST = -(2**63), 2**63


def ids(r: random.Random, count: int) -> np.ndarray:
    """Ids of tuples; the same one now and then, and none."""
    return np.array([r.choice([0, 1, 1, 2, 3, r.randrange(LEAST, MOST)]) for _ in range(count)], np.int64)


class Ackers:
    """Both ackers, which are told the same."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.old, self.new = OldAcker(10), Acker(10)
        self.now = 0
        self.told = 0
        far = [self.r.randrange(LEAST, MOST) for _ in range(20)]
        self.roots = sorted({*range(40), *range(100, 200, 3), *far})

    def some(self, most: int) -> np.ndarray:
        return np.array([self.r.choice(self.roots) for _ in range(self.r.randint(0, most))], np.int64)

    def step(self) -> None:
        r = self.r
        what = r.choice(
            ["init", "init_many", "ack", "ack_many", "ack_many", "fail", "fail_many", "reset", "tick"]
        )
        root, value = r.choice(self.roots), int(ids(r, 1)[0])
        some = self.some(60)
        values = ids(r, len(some))
        if what == "init":
            said = [one.init(root, value) for one in (self.old, self.new)]
        elif what == "init_many":
            some = np.unique(some)
            values = ids(r, len(some))
            said = [[part.tolist() for part in one.init_many(some, values)] for one in (self.old, self.new)]
        elif what == "ack":
            said = [one.ack(root, value) for one in (self.old, self.new)]
        elif what == "ack_many":
            said = [one.ack_many(some, values).tolist() for one in (self.old, self.new)]
        elif what == "fail":
            said = [one.fail(root) for one in (self.old, self.new)]
        elif what == "fail_many":
            said = [one.fail_many(some).tolist() for one in (self.old, self.new)]
        elif what == "reset":
            said = [one.reset_many(some) for one in (self.old, self.new)]
        else:
            self.now += r.choice([0, 4, 10, 25])
            said = [sorted(one.tick(self.now)) for one in (self.old, self.new)]
        names = [[getattr(one, "name", one)] if not isinstance(one, list) else one for one in said]
        assert names[0] == names[1]
        assert self.old.pending == self.new.pending
        self.told += names[0] not in ([None], [], [[], []])


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32))
def test_the_acker_answers_as_before(seed: int) -> None:
    ackers = Ackers(seed)
    for _ in range(40):
        ackers.step()


def test_the_ackers_are_told_enough_to_answer() -> None:
    ackers = Ackers(1)
    for _ in range(300):
        ackers.step()
    assert ackers.told > 50
