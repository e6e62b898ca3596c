"""Compares what a run writes, and what its shards become, after listings and looks with what they were before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from twins.old_listing.forgetting import Forgetting, note_tips
from twins.old_listing.lineage_keeper import LineageKeeper

from kinesis_trident.spout.errors import DataLossError
from kinesis_trident.spout.planner.shards.filling import fill_state
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.spout.positions import ShardEnd

Call = tuple[str, Any]
_ASKS = ("list_shards", "list_new_shards", "has_shard")
_WRITES = ("put_lineage", "forget", "amend", "settle")


class CutError(Exception):
    """The run has got no further here."""


class Script:
    """What a run asks and writes, and what it is told; a twin is answered the same."""

    def __init__(self, state: SourceState) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.written: list[Call] = []
        self.reported: list[tuple[str, dict[str, bool]]] = []
        self.state = state
        self.error: BaseException | None = None

    @contextmanager
    def record(self) -> Iterator[None]:
        """Note what is asked and written within."""
        state, store = self.state, self.state._store
        with (
            mock.patch.multiple(state.streams, **{name: self._ask(state.streams, name) for name in _ASKS}),
            mock.patch.object(store.streams, "start", self._ask(store.streams, "start")),
            mock.patch.multiple(store.shards, **{name: self._write(store.shards, name) for name in _WRITES}),
            mock.patch.object(state.losses, "report", self._report(state.losses.report)),
        ):
            try:
                yield
            except BaseException as error:
                self.error = error
                raise

    def _ask(self, real: Any, name: str) -> Callable[..., Any]:
        call = getattr(real, name)

        def ask(first: str, *args: Any) -> Any:
            count = len(self.asked)
            answer = call(first, *args)
            # What it has asked for this is a part of it.
            self.asked[count:] = [(name, first, answer)]
            return answer

        return ask

    def _write(self, real: Any, name: str) -> Callable[..., Any]:
        call = getattr(real, name)

        def write(*args: Any, **nodes: Any) -> Any:
            answer = call(*args, **nodes)
            self.written.append((name, (args, {key: node for key, node in nodes.items() if node})))
            return answer

        return write

    def _report(self, call: Callable[..., None]) -> Callable[..., None]:
        def report(what: str, **more: bool) -> None:
            self.reported.append((what, more))
            call(what, **more)

        return report


class Played:
    """Answers a twin as the run was answered, and notes what the twin writes and reports."""

    def __init__(self, script: Script) -> None:
        self._left = list(script.asked)
        self._most = len(script.written) if script.error is not None else None
        self._is_lost = isinstance(script.error, DataLossError)
        self.written: list[Call] = []
        self.reported: list[tuple[str, dict[str, bool]]] = []
        state = script.state
        self.streams: Any = SimpleNamespace(
            **{name: self._answer(name) for name in _ASKS},
            infos=state.streams.infos,
            created=state.streams.created,
            info_of=state.streams.info_of,
        )
        self.store: Any = SimpleNamespace(
            layout=state._layout,
            streams=SimpleNamespace(start=self._answer("start")),
            shards=SimpleNamespace(**{name: self._write(name) for name in _WRITES}),
        )
        self.losses: Any = SimpleNamespace(report=self._report)

    def _answer(self, name: str) -> Callable[..., Any]:
        def answer(first: str, *_: Any) -> Any:
            found = next((one for one in self._left if one[:2] == (name, first)), None)
            if found is None:
                raise CutError(name, first)
            self._left.remove(found)
            return found[2]

        return answer

    def _write(self, name: str) -> Callable[..., None]:
        def write(*args: Any, **nodes: Any) -> None:
            if len(self.written) == self._most:
                raise CutError
            self.written.append((name, (args, {key: node for key, node in nodes.items() if node})))

        return write

    def _report(self, what: str, **more: bool) -> None:
        self.reported.append((what, more))
        if self._is_lost:
            raise CutError

    @property
    def left(self) -> list[Any]:
        """Return what the run has asked, and the twin has not."""
        return self._left


class Shadow:
    """Watches what the runs of a schedule make of listings and looks.

    Attributes:
        listed, noted: the number of writes of each that were compared.
        forgotten: the shards of which nodes went; `missed`: those that a listing has lacked.
        cut: the number of events that ended before all was written.
    """

    def __init__(self) -> None:
        self.listed = self.noted = self.cut = 0
        self.forgotten: set[str] = set()
        self.missed: set[str] = set()
        self.wrong: list[str] = []

    def list_shards(self, real: Callable[..., None], state: SourceState, *, everything: bool) -> None:
        """List as the product does, then as before, with the same answers."""
        before, sights, script = state.shards, state.sights, Script(state)
        try:
            with script.record():
                real(state, everything=everything)
        except BaseException:
            self.cut += 1
            raise
        finally:
            self.listed += len(script.written)
            self.missed |= state.shards.missed.keys()
            self._compare(script, before, sights, everything=everything)

    def _compare(self, script: Script, before: Shards, sights: Sights, *, everything: bool) -> None:
        state, played = script.state, Played(script)
        keeper = LineageKeeper(
            state.lister._options, played.store, played.streams, state.epoch, played.losses
        )
        forgetting, after, done = Forgetting(played.store, state.epoch, dict(before.missed)), before, False
        with suppress(CutError):
            unread = keeper.missed = forgetting.unread
            known = {**before.missed, **before.states}
            keeper.back = {s for s, one in known.items() if isinstance(one.position, ShardEnd)}
            lineage = keeper.list_all(before, sights, unread) if everything else keeper.list_new(before)
            new = sorted(lineage.keys() - before.states.keys())
            states = {shard: forgetting.begin(shard, lineage[shard]) for shard in new}
            after = replace(before, states={**before.states, **states}, lineage=lineage)
            if everything:
                after = forgetting.forget(after)
            filled = {}
            for shard, one in after.active.items():
                digits = state.streams.digits.get(state._layout.key_of(shard).stream, 0)
                now = fill_state(one, digits) if digits else one
                if now is not one:
                    nodes = {"checkpoint": now.checkpoint, "inflight": now.inflight}
                    played.store.shards.amend(shard, state.epoch, **nodes)
                    filled[shard] = now
            after = replace(after, states={**after.states, **filled})
            done = True
        self.forgotten |= {
            shard for name, (args, _) in script.written if name == "forget" for shard in args[0]
        }
        self._expect("what is written", script.written, played.written)
        self._expect("what is not asked", played.left, [])
        self._expect("losses", sorted(map(str, script.reported)), sorted(map(str, played.reported)))
        if done:
            missed = {s: one for s, one in forgetting._missed.items() if s not in after.states}
            self._expect("shards", state.shards, replace(after, missed=missed))
        else:
            self._expect("the end", script.error is not None, True)
            self._expect("shards of what was answered", *_stored(script, before, state.shards))

    def note_at_tip(self, real: Callable[..., None], state: SourceState, sights: Sights) -> None:
        """Note tips as the product does, then as before."""
        before, seen, script = state.shards, state.sights, Script(state)
        try:
            with script.record():
                real(state, sights)
        except BaseException:
            self.cut += 1
            raise
        finally:
            self.noted += len(script.written)
            played = Played(script)
            with suppress(CutError):
                found, noted = note_tips(played.store, state.epoch, before, sights)
                self._expect("tips", state.shards, replace(before, states={**before.states, **found}))
                told = {
                    s: one.noted for s, one in state.sights.by_shard.items() if seen.of(s).noted != one.noted
                }
                changed = {s: at for s, at in noted.items() if seen.of(s).noted != at}
                self._expect("noted", told, changed)
            self._expect("written tips", script.written, played.written)

    def leave_out(self, real: Callable[..., None], state: SourceState, txid: int, mark: str) -> None:
        """Leave out batches as the product does; the node says what the shards say."""
        before, script = state.shards, Script(state)
        with script.record():
            real(state, txid, mark)
        ((name, ((updates, letters, lineage, settled, epoch), _)),) = script.written
        self._expect(
            "left out", (name, updates, letters, lineage, epoch), ("settle", {}, {}, None, state.epoch)
        )
        self._expect("txid", (settled.txid, mark or settled.plan), (txid, settled.plan))
        self._expect(
            "settled", state.shards, replace(before, settled=settled.txid, settled_plan=settled.plan)
        )

    def _expect(self, what: str, one: object, other: object) -> None:
        if one != other:
            self.wrong.append(f"{what}: {one} is not {other}")


def _stored(script: Script, before: Shards, after: Shards) -> tuple[object, object]:
    """Return the shards in memory, and as the writes that were answered have left them."""
    lineage, gone = before.lineage, set[str]()
    letters = dict(before.dead_letters)
    for name, (args, _) in script.written:
        if name == "put_lineage":
            lineage = args[0].shards
        elif name == "forget":
            gone |= set(args[0])
            letters = {shard: node for shard, node in letters.items() if shard not in gone} | args[1]
    known = (before.states.keys() | before.missed.keys() | lineage.keys()) - gone
    return (
        (after.lineage, after.dead_letters, after.states.keys() | after.missed.keys()),
        (lineage, letters, known),
    )


@contextmanager
def shadowed() -> Iterator[Shadow]:
    """Compare all that runs of this process make of listings and looks."""
    shadow = Shadow()
    names = ("list_shards", "note_at_tip", "leave_out")

    def watch(name: str) -> Callable[..., None]:
        real, mine = getattr(SourceState, name), getattr(shadow, name)

        def watched(state: SourceState, *args: Any, **more: Any) -> None:
            mine(real, state, *args, **more)

        return watched

    with mock.patch.multiple(SourceState, **{name: watch(name) for name in names}):
        yield shadow
    assert not shadow.wrong, shadow.wrong[0]
