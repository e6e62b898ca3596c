"""`prefetch`: a call that ends after its batch, for which nobody has waited, has ended once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.clocks import Surroundings
from kinesis_trident.spout.planner.pace import LookTimes
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.tip.prefetch import Prefetcher
from kinesis_trident.spout.planner.tip.tip_probe import TipProbe
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

A = "shardId-000000000000"


class Ending(Future[Any]):
    """A call that ends between two looks at it, once it is `due`."""

    due: Callable[[], None] | None = None

    def done(self) -> bool:
        """See `Future.done`."""
        was = super().done()
        if self.due is not None:
            end, self.due = self.due, None
            end()
        return was


class ByHand(Executor):
    """Makes a call when it is told to."""

    def __init__(self) -> None:
        self.begun: list[tuple[Ending, Callable[[], None]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`."""
        call = Ending()
        call.set_running_or_notify_cancel()
        self.begun.append((call, lambda: call.set_result(fn(*args, **kwargs))))
        return call


class Beside:
    """A batch that has ended while a call of a shard was under way."""

    def __init__(self) -> None:
        time, self.calls, steps = FakeTime(), ByHand(), list[Callable[[], float | None]]()
        kinesis = MemoryKinesis(clock=time.milliseconds)
        for number in range(9):
            kinesis.put(A, str(number).encode())

        def beside(step: Callable[[], float | None], _wake: threading.Event) -> None:
            steps.append(step)

        probe = TipProbe(kinesis, Layout("/", "app", "orders", 1), executor=self.calls, clock=time)
        options = SourceOptions(stream_name="orders", max_records_per_fetch=1)
        around = Surroundings(clock=time, steady=time, beside=beside)
        self.prefetcher = Prefetcher(probe, options, lambda _txid, _shards: {}, around)
        sights = Sights(LookTimes.of(period=0.2))
        self.here = {A: TRIM_HORIZON}
        self.prefetcher.begin(Plan(txid=1, plan="p", streams={}, positions={}), self.here, (), sights)
        for _ in range(2):
            steps[0]()
            if len(self.calls.begun) == 1:
                self.calls.begun[0][1]()
            time.sleep(1.0)
        self.late, self.end = self.calls.begun[1]
        self.sights = self.prefetcher.end(sights)
        assert self.under_way == 1

    @property
    def under_way(self) -> int:
        """Return the calls of the shard that count as under way."""
        return self.sights.of(A).budget.under_way

    def take(self) -> None:
        """Take what was found, as the next plan does."""
        self.sights = self.prefetcher.take(self.here, self.sights)


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_call_that_ends_after_its_batch_ends_once(meanwhile: bool) -> None:
    run = Beside()
    if meanwhile:
        run.late.due = run.end
    else:
        run.take()
        assert run.under_way == 1
        run.end()
    for _ in range(3):
        run.take()
    assert run.under_way == 0


def test_a_call_of_a_shard_that_was_forgotten_is_none_of_that_which_is_listed_again() -> None:
    run = Beside()
    run.sights = run.sights.only({})
    assert run.under_way == 0
    run.sights = run.sights.put({A: run.sights.of(A)})
    run.end()
    run.take()
    assert run.under_way == 0
