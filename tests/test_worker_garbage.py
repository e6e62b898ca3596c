"""What a Python worker of Spark collects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from kinesis_trident.worker_garbage import exempt_from_collections


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_a_worker_exempts_what_it_holds_once_for_each_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    before = gc.get_freeze_count()
    exempt_from_collections(("a user", id(unfrozen)))
    held = gc.get_freeze_count()
    assert held > before
    later = [[index] for index in range(10_000)]
    exempt_from_collections(("a user", id(unfrozen)))
    assert gc.get_freeze_count() < held + len(later)
    exempt_from_collections(("another user", id(unfrozen)))
    assert gc.get_freeze_count() >= held + len(later)


def test_a_process_that_is_no_worker_stays_as_it_is() -> None:
    before = gc.get_freeze_count()
    exempt_from_collections(("a user", "in no task"))
    assert gc.get_freeze_count() == before
