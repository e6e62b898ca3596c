"""Compares each unit that `step` yields with the amendment it replaces, and what the shells make of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
from twins.old_requests import amender as old
from twins.old_requests.amender import Amender, Amendment

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.planner import state as state_module
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.external_requests import step
from kinesis_trident.spout.planner.settling.settlement import InflightRules
from kinesis_trident.spout.planner.settling.shard_events import (
    Amended,
    HomeUnit,
    Requested,
    ShardUnit,
    Tally,
    TimedOut,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.state import SourceState

Event = Requested | TimedOut | Shards


class Pairs:
    """The units of an event, each compared with its amendment, and drawn with the same dice.

    Attributes:
        amendments: those of the units that were asked for so far.
    """

    def __init__(self, shards: Shards, event: Event, rules: InflightRules, layout: Layout, now: int) -> None:
        self.amendments: list[Amendment] = []
        self._event = event
        self._rules, self._layout = rules, layout
        self._dice = copy.copy(rules.rng)
        before = Amender(layout, replace(rules, rng=self._dice))
        match event:
            case Requested(asked):
                self._old = before.take_in(shards, asked, now)
            case TimedOut():
                self._old = before.time_out(shards, now)
            case Shards():
                self._old = before.unblock(event)
        self._new = step(shards, event, rules, layout, now)

    def __iter__(self) -> Iterator[ShardUnit | HomeUnit]:
        if isinstance(self._event, Shards):
            yield next(self._new)
        while True:
            self._dice.setstate(self._rules.rng.getstate())
            unit, (amendment, lines) = next(self._new, None), self._next_old()
            assert not isinstance(unit, HomeUnit)
            assert (unit is None) == (amendment is None)
            if unit is None or amendment is None:
                return
            folder = self._layout.external_of(amendment.shard)
            paths = {f"{folder}/{name}": why for name, why in amendment.unreadable.items()}
            refused = f"shard {amendment.shard}: {'; '.join(amendment.refused)}"[:1000]
            told = msgspec.structs.replace(unit, consumed=list(unit.consumed), told=list(unit.told))
            assert told == ShardUnit(
                amendment.shard,
                amendment.state,
                amendment.dead_letters,
                (),
                amendment.tally,
                list(amendment.consumed),
                {path: f"{path}: {why}" for path, why in paths.items()},
                lines,
                refused if amendment.refused else "",
            )
            check_positions(unit.state, amendment.state)
            assert self._rules.rng.getstate() == self._dice.getstate()
            self.amendments.append(amendment)
            yield unit

    def _next_old(self) -> tuple[Amendment | None, list[str]]:
        lines: list[str] = []

        def note(what: str, *values: object) -> None:
            lines.append(what % values)

        # Where schedules are played nothing is logged.
        with mock.patch.object(old.log, "warning", note):
            return next(self._old, None), lines


def check_positions(one: ShardState | None, other: ShardState | None) -> None:
    """Compare what the comparison of states leaves out."""
    turns = [
        None
        if state is None
        else {txid: list(map(str, keys.positions)) for txid, keys in state.turns.items()}
        for state in (one, other)
    ]
    assert turns[0] == turns[1]


def amend(shards: Shards, amendments: Iterable[Amendment]) -> tuple[Shards, list[str], Tally]:
    """Return the shards after amendments that were written, those that changed, and the counts: the shell before."""
    states: dict[str, ShardState] = {}
    letters, tally = dict(shards.dead_letters), Tally()
    for one in amendments:
        tally = tally.add(one.tally)
        if one.state is not None:
            states[one.shard] = one.state
        if one.dead_letters is not None:
            letters[one.shard] = one.dead_letters
    if not states:
        return shards, [], Tally()
    after = replace(shards, states={**shards.states, **states}, dead_letters=letters)
    return after, list(states), tally


class Shadow:
    """Watches what the runs of a schedule write between two batches.

    Attributes:
        written: the number of multis of each kind of event that were answered.
        cut: the number of events that ended before all their units were written.
    """

    def __init__(self) -> None:
        self.written = 0
        self.cut = 0
        self.wrong: list[str] = []
        self.pairs: Pairs

    def step(self, shards: Shards, event: Any, *more: Any) -> Iterable[ShardUnit | HomeUnit]:
        """Yield the units of an event, those of both shells compared."""
        if not isinstance(event, Event):
            return step(shards, event, *more)
        self.pairs = Pairs(shards, event, *more)
        return self.pairs

    def take(
        self, real: Callable[..., list[ShardUnit]], state: SourceState, event: Any, now: int
    ) -> list[ShardUnit]:
        """Write units as the product does, then compare the multis and the shards with those of the shell before."""
        if not isinstance(event, Event):
            return real(state, event, now)
        before, write = (
            event if isinstance(event, Shards) else state.shards,
            state._store.shards.amend,
        )
        answered: list[Amendment] = []
        told: list[Amended] = []

        def note(shard: str, epoch: int, **nodes: Any) -> None:
            one = self.pairs.amendments[-1]
            assert (shard, nodes) == (
                one.shard,
                {
                    "checkpoint": one.state.checkpoint if one.state else None,
                    "inflight": one.state.inflight if one.state else None,
                    "dead_letters": one.dead_letters,
                    "consumed": one.consumed,
                },
            )
            write(shard, epoch, **nodes)
            answered.append(one)

        def watch(_before: Shards, event: object, _after: Shards) -> None:
            if isinstance(event, Amended):
                told.append(event)

        state.watchers.append(watch)
        try:
            with mock.patch.object(state._store.shards, "amend", note):
                return real(state, event, now)
        except AssertionError as error:
            self.wrong.append(str(error))
            raise
        except BaseException:
            self.cut += 1
            raise
        finally:
            state.watchers.remove(watch)
            self.written += len(answered)
            self._compare(state.shards, told, *amend(before, answered))

    def _compare(
        self, shards: Shards, told: list[Amended], after: Shards, changed: list[str], tally: Tally
    ) -> None:
        if shards != after:
            self.wrong.append(f"{shards} is not {after}")
        for shard in changed:
            check_positions(shards.states[shard], after.states[shard])
        names = [unit.shard for event in told for unit in event.units if unit.state is not None]
        counts = [unit.tally for event in told for unit in event.units]
        summed = Tally(*map(sum, zip(*counts, strict=True))) if counts else Tally()
        if (list(dict.fromkeys(names)), summed, len(told)) != (changed, tally, bool(changed)):
            self.wrong.append(f"{told} does not tell of {changed}, {tally}")


@contextmanager
def shadowed() -> Iterator[Shadow]:
    """Compare all that runs of this process write between two batches."""
    shadow, real = Shadow(), SourceState._take

    def watched(state: SourceState, event: Any, now: int) -> list[ShardUnit]:
        return shadow.take(real, state, event, now)

    with (
        mock.patch.object(state_module, "step", shadow.step),
        mock.patch.object(SourceState, "_take", watched),
    ):
        yield shadow
    assert not shadow.wrong, shadow.wrong[0]
