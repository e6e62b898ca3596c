"""Answers of 10 MiB from very many shards: looks have one of them in memory, and what is kept for readers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.kinesis import AccessDeniedError, AskIterator, AskRecords, Page, make_call
from kinesis_trident.spout.planner.tip import tip_probe
from kinesis_trident.spout.planner.tip.looks import Look, Question, kept_bytes
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON, After, Position
from kinesis_trident.spout.testing import MemoryKinesis, aggregate
from kinesis_trident.tracker.records import RecordPosition

SHARDS, LARGE = 200, 2**20


class CountedKinesis(MemoryKinesis):
    """Counts the bytes of the answers that somebody still has.

    Attributes:
        held, most: the bytes now, and at most so far.
        together: how many calls were made at once.
    """

    def __init__(self) -> None:
        super().__init__(shards=SHARDS)
        self.names = [shard.id for shard in self.list_shards("orders")]
        self.held = self.most = 0
        self.together: list[int] = []

    def get_records(self, iterator: str, limit: int) -> Page:
        page = super().get_records(iterator, limit)
        self.held += page.size
        self.most = max(self.most, self.held)
        weakref.finalize(page.records, self._drop, page.size)
        return page

    def _drop(self, size: int) -> None:
        self.held -= size


class TogetherKinesis(CountedKinesis):
    """Makes calls together; an answer is read when it is asked for."""

    def call_together(self, asked: Sequence[AskIterator | AskRecords]) -> Iterator[Any]:
        self.together.append(len(asked))
        for one in asked:
            yield make_call(self, one)


@pytest.fixture(params=[CountedKinesis, TogetherKinesis])
def kinesis(request: pytest.FixtureRequest) -> CountedKinesis:
    made: CountedKinesis = request.param()
    return made


def looked(kinesis: CountedKinesis, position: Position) -> dict[str, Look]:
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1), patience=60)
    most = kept_bytes(SHARDS)
    found = probe.look({shard: Question(position, limit=10, most=most) for shard in kinesis.names})
    probe.close()
    assert found.error is None
    return found.looks


def test_one_large_answer_is_in_memory_at_a_time(kinesis: CountedKinesis) -> None:
    for shard in kinesis.names:
        kinesis.put(shard, bytes(LARGE))
    found = looked(kinesis, TRIM_HORIZON)
    assert [look.more for look in found.values()] == [True] * SHARDS
    assert LARGE <= kinesis.most < 2 * LARGE


def test_small_answers_are_kept_for_the_readers(kinesis: CountedKinesis) -> None:
    for shard in kinesis.names[1:]:
        kinesis.put(shard, bytes(1_000))
    kinesis.put(kinesis.names[0], bytes(LARGE))
    found = looked(kinesis, TRIM_HORIZON)
    kept = [shard for shard, look in found.items() if look.cursor.page is not None]
    assert kept == kinesis.names[1:]
    assert kinesis.held == (SHARDS - 1) * 1_000


def test_what_is_not_new_is_dropped_before_the_next_call(kinesis: CountedKinesis) -> None:
    for shard in kinesis.names:
        number = kinesis.put(shard, aggregate([(bytes(LARGE), "a"), (b"", "b")]))
    found = looked(kinesis, After(RecordPosition(number, 1)))
    assert [look.more for look in found.values()] == [False] * SHARDS
    assert LARGE <= kinesis.most < 2.1 * LARGE


def test_an_error_leaves_no_answer_behind(kinesis: CountedKinesis) -> None:
    for shard in kinesis.names:
        kinesis.put(shard, bytes(LARGE))
    kinesis.fail(kinesis.names[5], AccessDeniedError("no"))
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1))
    questions = {shard: Question(TRIM_HORIZON) for shard in kinesis.names}
    found = probe.look(questions)
    probe.close()
    assert isinstance(found.error, AccessDeniedError)
    assert kinesis.most < 2 * LARGE
    # The error refers to the frames that it went through.
    del found
    gc.collect()
    assert kinesis.held == 0


def test_fewer_are_asked_at_once_while_answers_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tip_probe, "UNDER_WAY", 4 * LARGE)
    kinesis = TogetherKinesis()
    probe = TipProbe(kinesis, Layout("/", "app", "orders", 1), patience=60)
    for shard in kinesis.names:
        kinesis.put(shard, bytes(LARGE if shard in kinesis.names[10:100] else 1))
    for _ in range(2):
        kinesis.together.clear()
        assert len(probe.look({shard: Question(TRIM_HORIZON) for shard in kinesis.names}).looks) == SHARDS
        # For iterators, and for records. The first large ones are not expected; behind the last ones it learns anew.
        assert kinesis.together == [64, 64, *[4] * 20, 64, 64, 32, 32]
    probe.close()
