"""Windows that were changed in code: as a naive list of all tuples, or refused in words."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.trident import MemoryMapState, StateShapeError, TopologyError
from kinesis_trident.trident.bolts import WindowedBolt
from kinesis_trident.trident.build.windows import PaneFunction
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.stores import MapStateFactory
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask
from kinesis_trident.trident.windowing.updater import (
    Advance,
    Arrived,
    bucket_key,
    of_count,
    of_time,
    times_of,
)
from kinesis_trident.trident.windowing.windows import Arrival, TumblingCountWindow, closed_windows

SHAPES = st.builds(
    lambda size, slide, by, buckets: Shape(size, min(size, slide), 0, by, buckets),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(["time", "count"]),
    st.integers(1, 2),
)
LIVES = st.lists(
    st.tuples(SHAPES, st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=3)),
    min_size=1,
    max_size=3,
)
OWNER = Owner("shop", "lines@1", "window(Sum)", frozenset({"window(Sum)"}))


def begun(factory: MapStateFactory, txid: int, shape: Shape) -> Any:
    state = factory.make_state({TASK: StateTask(txid, OWNER, shape=shape)}, 0, 1)
    state.begin_commit(txid)
    return state


def naive(shape: Shape, batches: list[list[int]]) -> list[tuple[int, int, list[int]]]:
    """The windows of all tuples that were not late, closed by the greatest point so far."""
    kept: list[int] = []
    mark: int | None = None
    closed = []
    for batch in batches:
        points = batch if shape.by == "time" else list(range(len(kept), len(kept) + len(batch)))
        last = max(points) + (shape.by == "count")
        kept += [at for at in points if mark is None or shape.last_end(shape.pane_of(at)) > mark]
        for start in range(-shape.size, 50):
            end = start + shape.size
            inside = sorted(at for at in kept if start <= at < end)
            is_new = mark is None or end > mark
            if (start - shape.offset) % shape.slide == 0 and inside and end <= last and is_new:
                closed.append((start, end, inside))
        mark = last if mark is None else max(mark, last)
    return closed


@given(lives=LIVES)
def test_as_a_list_of_all_tuples_or_refused(lives: Any) -> None:
    factory = MemoryMapState.opaque()
    first: Shape | None = None
    batches: list[list[int]] = []
    found: list[tuple[int, int, list[int]]] = []
    txid = 0
    for shape, news in lives:
        for batch in news:
            txid += 1
            if first is not None and shape != first:
                with pytest.raises(StateShapeError, match=r"the code now has windows of .*another keyPrefix"):
                    begun(factory, txid, shape)
                continue
            first = shape
            state = begun(factory, txid, shape)
            arrived: Arrived
            if shape.by == "time":

                def arrived(before: int | None, batch: list[int] = batch, shape: Shape = shape) -> Any:
                    return of_time(
                        [Arrival(shape.pane_of(at), (), 1, [at]) for at in batch], max(batch), before
                    )

            else:
                values = [[at] for at in range(sum(map(len, batches)), sum(map(len, batches)) + len(batch))]

                def arrived(before: int | None, values: Any = values, shape: Shape = shape) -> Any:
                    return of_count(shape, values, before)

            [value] = state.multi_update([bucket_key(0)], [Advance("window", shape, operator.add, arrived)])
            state.commit(txid)
            batches.append(batch)
            found += [(one.start, one.end, sorted(one.partial)) for one in closed_windows(value)]
    if first is not None:
        assert sorted(found) == sorted(naive(first, batches))


def test_the_case_that_lost_five_of_five(every_store: MapStateFactory) -> None:
    """60 s to 30 s; the message says what the state holds, and the run of before goes on."""
    minute, half = Shape(60_000_000, 60_000_000), Shape(30_000_000, 30_000_000)
    begun(every_store, 1, minute).commit(1)
    with pytest.raises(
        StateShapeError,
        match=r"window\(Sum\)' holds windows of 0:01:00 every 0:01:00, and .*0:00:30 every 0:00:30",
    ):
        begun(every_store, 2, half)
    begun(every_store, 2, minute).commit(2)
    for other in (Shape(3, 3, 0, "count"), Shape(60_000_000, 60_000_000, buckets=2)):
        with pytest.raises(StateShapeError):
            begun(every_store, 3, other)


def test_windows_that_the_release_before_kept_are_taken_as_they_are(every_store: MapStateFactory) -> None:
    for txid, shape in [(1, None), (2, Shape(3, 3, 0, "count")), (3, Shape(3, 3, 0, "count"))]:
        state = every_store.make_state({TASK: StateTask(txid, OWNER, shape=shape)}, 0, 1)
        state.begin_commit(txid)
        state.multi_put([("a",)], [txid])
        state.commit(txid)
    assert every_store.make_state({}, 0, 1).multi_get([("a",)]) == [3]


def test_times_outside_of_the_calendar_fail_alone() -> None:
    """Milliseconds that were taken for seconds, and a window that would end after the last year."""
    day = Shape(86_400_000_000, 86_400_000_000)
    good = int(datetime(2026, 11, 28, tzinfo=UTC).timestamp()) * 10**6
    last = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 10**6
    place = PaneFunction(day)

    def of(*at: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(at, pa.timestamp("us", "UTC"))], ["at"])

    made, _ = place.execute(of(good, good + 1))
    assert made.column(1).to_pylist() == [good, good]
    for wrong in (good * 1_000, last + 1, -62_135_596_800_000_000):
        with pytest.raises(ValueError, match=r"'at' is .* outside of the years 1 to 9999"):
            place.execute(of(wrong))
    for limit in (last - 86_400_000_000, -62_135_596_800_000_000 + 86_400_000_000):
        made, _ = place.execute(of(limit))
        pane = made.column(1)[0].as_py()
        arrived = partial(of_time, [Arrival(pane, (), 1, 1)], pane + 2 * day.size)
        windows = closed_windows(Advance("window", day, max, arrived).update(None))
        assert [times_of("window", window) for window in windows]


def test_a_negative_lag_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"WindowedBolt: lag=-1 day.* Give a timedelta of zero or more"):
        WindowedBolt(MemoryMapState.opaque(), TumblingCountWindow(3), ["word"], lag=timedelta(seconds=-1))
