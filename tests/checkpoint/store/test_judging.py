"""The note that a driver judges is the newest run's, names the runs before it that judged, and can be taken back."""

from __future__ import annotations

import pytest

from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.nodes import JudgingNode
from kinesis_trident.checkpoint.store.source_store import SourceStore

NOW = 1_700_000_000_000


def begun(store: SourceStore) -> int:
    return store.epochs.raise_epoch("here", 1, NOW)


def test_the_first_note_is_taken_back_as_if_it_had_never_been_there(store: SourceStore) -> None:
    epoch = begun(store)
    assert store.judging.declare(epoch) == []
    assert store.judging.get() == JudgingNode(epoch=epoch)
    store.judging.take_back(epoch)
    assert store.judging.get() is None
    store.judging.declare(epoch)
    assert store.judging.get() == JudgingNode(epoch=epoch)


def test_a_note_says_which_readers_of_the_batch_judged(store: SourceStore, older: SourceStore) -> None:
    older.judging.declare(begun(older))
    begun(older)
    epoch = begun(store)
    # Run 1 judged, run 2 was of a plain query.
    assert store.judging.declare(epoch, lambda: {1, 2, epoch}) == [2]
    assert store.judging.get() == JudgingNode(epoch=epoch, earlier=(1,))
    assert store.judging.declare(epoch, lambda: pytest.fail("it is noted")) == []
    store.judging.take_back(epoch)
    assert store.judging.get() == JudgingNode(epoch=1)


def test_a_driver_takes_back_only_its_own_note(store: SourceStore, older: SourceStore) -> None:
    epoch = begun(store)
    older.judging.take_back(epoch)
    older.judging.declare(epoch)
    store.judging.declare(epoch)
    # Both are of one run, and the second relies on it.
    older.judging.take_back(epoch)
    assert store.judging.get() == JudgingNode(epoch=epoch)


def test_a_driver_that_was_replaced_changes_no_note(store: SourceStore, older: SourceStore) -> None:
    before = begun(older)
    older.judging.declare(before)
    epoch = begun(store)
    older.judging.take_back(before)
    assert store.judging.get() == JudgingNode(epoch=before)
    store.judging.declare(epoch)
    with pytest.raises(FencedError):
        older.judging.declare(before)
    assert store.judging.get() == JudgingNode(epoch=epoch)
