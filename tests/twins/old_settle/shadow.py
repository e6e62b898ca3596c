"""Settles each batch once more as it was settled before, on the answers that the product got."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, ValuesView
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

from twins.old_requests.shadow import check_positions
from twins.old_settle.batches import BatchSettled as Before, CommittedBatch, settle_batch, settle_in

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.planner.settling.finished_batch import Origin
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.state import SourceState

CALLS: Mapping[str, tuple[str, ...]] = {
    "batches": ("read_finished", "get", "find_deleted", "create_pins", "replace_pin"),
    "shards": ("settle", "lost_error"),
    "judging": ("get", "forget"),
}
"""What of the store a settling calls, by part."""


class Call(NamedTuple):
    """A call of the store, and its answer or error."""

    name: str
    args: tuple[Any, ...]
    kinds: Mapping[str, Any]
    answer: Any
    error: BaseException | None


class Left(Exception):
    """The product did no more."""


def _as_written(name: str, args: tuple[Any, ...], kinds: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call; what is written is in order."""
    if name == "shards.settle":
        updates, letters, lineage, settled, epoch, *more = args
        leftover = more[0] if more else kinds["leftover"]
        return [*updates.items()], letters, lineage, settled, epoch, leftover
    return [[*one] if isinstance(one, ValuesView) else one for one in args], kinds


class Shadow:
    """Watches how the runs of a schedule settle.

    Attributes:
        settled: the number of batches that were settled; `cut`: of those that were not, or in some shards alone.
    """

    def __init__(self) -> None:
        self.settled = self.cut = 0
        self.wrong: list[str] = []

    def settle(self, real: Callable[..., None], state: SourceState, plan: Plan, origin: Origin) -> None:
        """Settle as the product does, then compare what it wrote, told, and holds, with the shell before."""
        before, judged, dice = state.shards, state._judged, copy.copy(state._rules.rng)
        assert state._drawn is None
        calls, told, times, moved = list[Call](), list[BatchSettled](), list[int](), list[str]()
        error: BaseException | None = None
        with ExitStack() as stack:
            for part, names in CALLS.items():
                for name in names:
                    noted = self._noted(calls, moved, part, name, getattr(getattr(state._store, part), name))
                    stack.enter_context(mock.patch.object(getattr(state._store, part), name, noted))
            now = state._now

            def note_time() -> int:
                times.append(now())
                return times[-1]

            def watch(_before: Shards, event: object, _after: Shards) -> None:
                if isinstance(event, BatchSettled):
                    told.append(event)

            stack.enter_context(mock.patch.object(state, "_now", note_time))
            state.watchers.append(watch)
            try:
                real(state, plan, origin)
            except BaseException as raised:
                error = raised
                raise
            finally:
                state.watchers.remove(watch)
                try:
                    self._compare(state, before, plan, origin, judged, dice, calls, told, times, moved, error)
                except AssertionError:
                    self.wrong.append(f"txid {plan.txid}: {traceback.format_exc()}")

    @staticmethod
    def _noted(
        calls: list[Call], moved: list[str], part: str, name: str, real: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kinds: Any) -> Any:
            answer, error = None, None
            try:
                answer = real(*args, **kinds)
            except BaseException as raised:
                error = raised
                raise
            finally:
                if name == "settle":
                    moved.extend(args[6])
                calls.append(Call(f"{part}.{name}", args, kinds, answer, error))
            return answer

        return call

    def _compare(
        self,
        state: SourceState,
        before: Shards,
        plan: Plan,
        origin: Origin,
        judged: bool,
        dice: Any,
        calls: list[Call],
        told: list[BatchSettled],
        times: list[int],
        moved: list[str],
        error: BaseException | None,
    ) -> None:
        # Of no pins no multi is made.
        left = iter([one for one in calls if one.name != "batches.create_pins" or one.args[0]])

        def replayed(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kinds: Any) -> Any:
                if name == "batches.create_pins" and not args[0]:
                    return {}
                one = next(left, None)
                if one is None:
                    raise Left
                assert one.name == name
                assert _as_written(name, one.args, one.kinds) == _as_written(name, args, kinds)
                if one.error is not None:
                    raise one.error
                return one.answer

            return call

        parts = {
            part: SimpleNamespace(**{name: replayed(f"{part}.{name}") for name in names})
            for part, names in CALLS.items()
        }
        store = cast("SourceStore", SimpleNamespace(layout=state._layout, **parts))
        event: Before | None = None
        missed = False
        try:
            finished = CommittedBatch.of(store, plan, state.epoch, origin, judged=judged)
            rules = replace(state._rules, rng=dice)
            event = settle_batch(before, finished, rules, state._layout, times[0] if times else 0)
            settle_in(store, before, finished, event, state.epoch)
        except Left:
            # A loss that stops the query.
            assert error is not None
        except AssertionError:
            raise
        except BaseException as raised:
            missed = (type(raised), str(raised)) != (type(error), str(error))
        else:
            assert error is None, error
        assert not missed
        assert next(left, None) is None
        assert state._rules.rng.getstate() == dice.getstate()
        is_whole = any(one.name == "shards.settle" and one.error is None for one in calls)
        self.settled, self.cut = self.settled + is_whole, self.cut + (not is_whole)
        expected, shards = before, state.shards
        if event is not None and is_whole:
            expected = event.after(before)
        elif event is not None:
            after, known = event.after(before), set(moved)
            states = {shard: one for shard, one in after.states.items() if shard in known}
            letters = {shard: one for shard, one in event.dead_letters.items() if shard in known}
            expected = replace(
                before,
                states={**before.states, **states},
                dead_letters={**before.dead_letters, **letters},
            )
        assert shards == expected
        for shard, one in expected.states.items():
            check_positions(shards.states[shard], one)
            assert shards.states[shard].kept == one.kept
        if event is None or not told:
            assert not moved
        else:
            _compare_told(told, event, set(moved), is_whole=is_whole)


def _compare_told(told: list[BatchSettled], event: Before, moved: set[str], *, is_whole: bool) -> None:
    (settled,) = told
    done = {shard: one for shard, one in event.done.items() if is_whole or shard in moved}
    assert [(unit.shard, unit.buried) for unit in settled.units] == [
        (shard, one.dead_lettered) for shard, one in done.items()
    ]
    assert (settled.is_whole, settled.now, settled.ended) == (is_whole, event.now, event.ended)
    assert bool(settled.leftover) is not event.leaves_nodes


@contextmanager
def shadowed() -> Iterator[Shadow]:
    """Compare all that runs of this process settle."""
    shadow, real = Shadow(), SourceState.settle

    def watched(state: SourceState, plan: Plan, origin: Origin) -> None:
        shadow.settle(real, state, plan, origin)

    with mock.patch.object(SourceState, "settle", watched):
        yield shadow
    assert not shadow.wrong, shadow.wrong[0]
