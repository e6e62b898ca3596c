"""The unfinished records of one shard as sorted runs, and the safe checkpoint below them.

Events mark runs: as done, as changed, or as replaced by their parts. One pass over the list, `OpenRuns.tidy`, then
drops what is done, joins changed runs with neighbours of the same fate, and moves the checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter, lt
from typing import Any

from twins.old_face.retry_queue import RetryQueue
from twins.old_tracker.entries import Entry, as_entry, load_entries, parse_place
from twins.old_tracker.places import PARSED, Place, Places, are_comparable

from kinesis_trident.tracker.errors import OrderError, UnknownRunError
from kinesis_trident.tracker.records import RecordPosition, Run
from kinesis_trident.tracker.retry import RetryPolicy, State

_LAST = attrgetter("last")

_LINGERING = 64
"""Done runs that stay in the list although few are open."""


class OpenRuns:
    """The runs of one shard that are not done. Its checkpoint is the last record of the done prefix.

    Positions are held in a form in which they compare, see `Place`: as texts where all those of the shard compare so.
    Then a waiting run that nothing happened to stays the `Run` that is stored: there may be very many.

    Attributes:
        policy: how failed records are retried.
        places: brings texts into the form in which positions are held.
        entries: the runs above the checkpoint, in shard order. Done ones stay in it until the next `tidy`, of a `Run`
            only its last record.
        behind: those at or below it, in shard order: there because somebody asked for them again.
        high: the last record delivered or known to be done; None before the first.
        round: the mark of the entries that got their fate since the last `tidy`.
        changed: the last records of the stored runs that got their fate since the last `tidy`.
        queue: of what waits for a retry; None until somebody asks for records one at a time, and after other changes.
    """

    def __init__(self, policy: RetryPolicy, checkpoint: Place | None, places: Places = PARSED) -> None:
        self.policy = policy
        self.places = places
        self.entries: list[Any] = []
        self.behind: list[Any] = []
        self.high = self._checkpoint = checkpoint
        self.round = 1
        self.queue: RetryQueue | None = None
        self._by_last: dict[Place, Entry] | None = None
        self.changed: set[Place] = set()
        self._head = self._done = 0
        self._is_untidy = self._has_parts = False

    def load(self, entries: list[Any], through: Place | None) -> None:
        """Take in what is not done of a shard; everything else up to `through` is.

        Raises:
            OrderError: the entries overlap each other or the checkpoint, or one has no beginning.
        """
        for entry in entries:
            if entry.count < 1 or not (entry.first or entry.prev):
                msg = f"stored run of {entry.count} records up to {entry.last}: no first record and none before it"
                raise OrderError(msg)
        entries.sort(key=_LAST)
        checkpoint = self._checkpoint
        lows = [entry.first or entry.last for entry in entries]
        above = 0 if checkpoint is None else bisect_right(entries, checkpoint, key=_LAST)
        rising = all(map(lt, map(_LAST, entries), islice(lows, 1, None)))
        if not rising or (above < len(lows) and checkpoint is not None and lows[above] <= checkpoint):
            for at, (low, entry) in enumerate(zip(lows, entries, strict=True)):
                floors = (entries[at - 1].last if at else None, checkpoint if at >= above else None)
                if any(floor is not None and low <= floor for floor in floors):
                    msg = f"stored run from {low} to {entry.last} overlaps another, or the checkpoint {checkpoint}"
                    raise OrderError(msg)
        self.behind, self.entries = entries[:above], entries[above:]
        self.high = _max_place(_max_place(checkpoint, entries[-1].last if entries else None), through)
        self.advance()

    def parse(self) -> None:
        """Hold positions as `RecordPosition` from now on."""
        if self.places is PARSED:
            return
        self.tidy()
        self.places, self._by_last = PARSED, None
        for entries in (self.behind, self.entries):
            stored = [entry for entry in entries if isinstance(entry, Run)]
            parsed = iter(load_entries(stored, State.WAITING, PARSED))
            entries[:] = [next(parsed) if isinstance(entry, Run) else entry for entry in entries]
        for entry in self:
            entry.last, entry.first = map(parse_place, (entry.last, entry.first))
            entry.prev, entry.floor = map(parse_place, (entry.prev, entry.floor))
        self.high, self._checkpoint = parse_place(self.high), parse_place(self._checkpoint)

    def admit(self, texts: Sequence[str]) -> None:
        """Hold positions in a form in which they compare with these, too."""
        if self.places is not PARSED and texts:
            known = [self.high] if self.high is not None else []
            if not are_comparable([*texts, *known]):
                self.parse()

    def place(self, position: RecordPosition | str) -> Place:
        """Return a position in the form in which positions are held here."""
        self.admit([str(position)])
        return self.places([str(position)])[0]

    @property
    def checkpoint(self) -> Place | None:
        """Everything up to this record is done; None before the first."""
        self.tidy()
        return self._checkpoint

    @property
    def by_last(self) -> dict[Place, Entry]:
        """The runs that are not done by their last records, all of them as entries."""
        if self._by_last is None:
            self._by_last = {entry.last: entry for entry in self}
        return self._by_last

    def __iter__(self) -> Iterator[Entry]:
        """Return all runs that are not done, in shard order."""
        self.parse()
        self.tidy()
        for entries in (self.behind, self.entries):
            for entry in entries:
                if isinstance(entry, Entry) and entry.state is not State.ACKED:
                    yield entry

    def runs(self, state: State) -> tuple[Run, ...]:
        """Return the runs in a state, in shard order, as they are stored."""
        self.tidy()
        is_waiting = state is State.WAITING
        return tuple(
            [
                one if isinstance(one, Run) else one.stored or one.run()
                for one in (*self.behind, *self.entries)
                if (is_waiting if isinstance(one, Run) else one.state is state)
            ]
        )

    def find(self, last: RecordPosition) -> Entry | None:
        """Return the run that ends with this record, and is not done."""
        self.parse()
        return self.by_last.get(last)

    def find_run(self, run: Run, state: State) -> Entry:
        """Return the entry of a stored run.

        Raises:
            UnknownRunError: there is none in this state.
        """
        return self.check(run, state, self.find(run.last_position))

    def check(self, run: Run, state: State, entry: Entry | None) -> Entry:
        """Return the entry of a stored run if it is that.

        Raises:
            UnknownRunError: it is not.
        """
        if (
            entry is None
            or entry.state is not state
            or entry.attempt != run.attempt
            or entry.count != run.count
        ):
            msg = (
                f"no {state.name.lower()} run of {run.count} records up to {run.last} after delivery "
                f"{run.attempt} (checkpoint {self.checkpoint}): it was settled before, or planned elsewhere"
            )
            raise UnknownRunError(msg)
        return entry

    def find_served_until(
        self, entry: Entry, served: int, through: RecordPosition | str | None, *, has_failed: bool = False
    ) -> Place | None:
        """Return the last of the first `served` records of a run, of which `through` says it; None if there are none.

        Raises:
            OrderError: these do not fit the run.
        """
        if not 0 <= served <= entry.count or (served == 0 and has_failed):
            failed = ", some of which failed," if has_failed else ""
            msg = f"{served} records served{failed} of the {entry.count} up to {entry.last}"
            raise OrderError(msg)
        if served in (0, entry.count):
            return entry.last if served else None
        last = None if through is None else self.place(through)
        if last is None or last == entry.last or not entry.covers(last):
            msg = f"{served} of {entry.count} records up to {entry.last} were served, but the last one is {through}"
            raise OrderError(msg)
        return last

    def find_from(self, position: Place) -> tuple[list[Any], int]:
        """Return the list that a position belongs to, and the index of the first run in it not ending before that."""
        self.tidy()
        is_behind = self._checkpoint is not None and position <= self._checkpoint
        entries = self.behind if is_behind else self.entries
        return entries, bisect_left(entries, position, key=_LAST)

    def take_again(self, revived: Sequence[Entry]) -> None:
        """Take in runs that are due again: those that were there, and those of records that were done."""
        known, checkpoint = self.by_last, self._checkpoint
        fresh = [one for one in revived if one.last not in known]
        above = 0 if checkpoint is None else bisect_right(fresh, checkpoint, key=_LAST)
        for entries, some in ((self.behind, fresh[:above]), (self.entries, fresh[above:])):
            entries.extend(some)
            entries.sort(key=_LAST)
        self.index(fresh)
        for one in revived:
            self.touch(one)

    def append(self, entry: Entry) -> None:
        """Take in a run after all others."""
        self.entries.append(entry)
        self.high = entry.last
        if self._by_last is not None and entry.state is not State.ACKED:
            self._by_last[entry.last] = entry

    def extend(self, parts: Sequence[Entry | Run], high: Place) -> None:
        """Take in new runs after all others; everything else up to `high` is done."""
        self.high = high
        if parts:
            self.entries += parts
            self.changed.update([part.last for part in parts if isinstance(part, Run)])
            self.index(parts)
            self._is_untidy = True
        self.advance()

    def splice(self, entry: Entry, parts: Sequence[Entry]) -> None:
        """Do what `replace` does, at once: in a list that is long this takes longer."""
        entries, at = self.find_from(entry.last)
        while entries[at] is not entry:
            at += 1
        self._drop(entry)
        entries[at : at + 1] = parts
        self.index(parts)
        self.queue = None
        self.advance()

    def replace(self, entry: Entry, parts: Sequence[Entry]) -> None:
        """Mark a run as done but for these parts, which stand in its place after the next `tidy`."""
        self._drop(entry)
        entry.parts = parts
        self.index(parts)
        self._is_untidy = self._has_parts = True

    def leave_untidy(self) -> None:
        """Leave it to the next `tidy` to take in changes: that takes less time where there are very many."""
        self._is_untidy = True

    def touch(self, entry: Entry) -> None:
        """Let a run be joined with its neighbours, if they share its fate, in the next `tidy`."""
        entry.touched = self.round
        self._is_untidy = True

    def mark_done(self, entry: Entry) -> None:
        """Mark all records of a run as done."""
        self._drop(entry)
        entry.bits = None
        if self._is_untidy:
            return
        self._done += 1
        if 2 * self._done > _LINGERING + len(self.entries) + len(self.behind):
            self._is_untidy = True
            self.tidy()
        else:
            self.advance()

    def _drop(self, entry: Entry) -> None:
        entry.state = State.ACKED
        if self._by_last is not None:
            del self._by_last[entry.last]

    def index(self, parts: Sequence[Any]) -> None:
        """Find new runs by their last records."""
        if self._by_last is not None:
            self._by_last.update([(part.last, part) for part in parts if part.state is not State.ACKED])

    def advance(self) -> None:
        """Move the checkpoint to the first record that is not done; `tidy` does it itself."""
        if self._is_untidy:
            return
        entries, checkpoint = self.entries, self._checkpoint
        while (
            self._head < len(entries)
            and isinstance(entry := entries[self._head], Entry)
            and entry.state is State.ACKED
        ):
            checkpoint = entry.last
            self._head += 1
        head = entries[self._head] if self._head < len(entries) else None
        if isinstance(head, Entry):
            head.drop_done()
        floor = head.floor if isinstance(head, Entry) else None
        self._checkpoint = _max_place(checkpoint, self.high if head is None else _max_place(head.prev, floor))

    def tidy(self) -> None:
        """Drop what is done, put parts in place, join neighbours with the same fate, and move the checkpoint."""
        if not self._is_untidy:
            return
        if self.behind:
            self.behind = self._join(self.behind)
        self.entries = self._join(self.entries)
        self._head = self._done = 0
        self._is_untidy = self._has_parts = False
        self.changed, self.queue, self._by_last = set(), None, None
        self.round += 1
        self.advance()

    def _join(self, entries: Sequence[Any]) -> list[Any]:
        """Return what is not done."""
        kept: list[Any] = []
        before: Any = None
        done: Place | None = None
        this_round, changed = self.round, self.changed
        is_touched = was_touched = False
        for entry in _insert_parts(entries) if self._has_parts else entries:
            kind = type(entry)
            if kind is Run:
                is_touched = entry.last in changed
            elif kind is str:
                done = entry
                continue
            elif entry.state is State.ACKED:
                done = entry.last
                continue
            else:
                is_touched = entry.touched == this_round
            if (
                (is_touched or was_touched)
                and before is not None
                and entry.prev == before.last
                and _share_a_fate(before, entry)
            ):
                was_touched, count = True, before.count + entry.count
                if kind is type(before) is Run:
                    first, prev, fate = (
                        before.first,
                        before.prev,
                        (before.attempt, before.due, before.failures),
                    )
                    before = Run(first, entry.last, count, prev, *fate)
                else:
                    before = as_entry(before)
                    before.last, before.count, before.stored = entry.last, count, None
                    before.touched = this_round
                kept[-1] = before
                continue
            before = entry
            if done is not None:
                if entry.prev is None:
                    before = as_entry(entry)
                    before.floor = done if before.floor is None else max(done, before.floor)
                done = None
            kept.append(before)
            was_touched = is_touched
        return kept


def _max_place(one: Place | None, other: Place | None) -> Place | None:
    return other if one is None or (other is not None and other > one) else one


def _insert_parts(entries: Sequence[Any]) -> list[Any]:
    """Return entries, each after its parts."""
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, Entry) and entry.parts:
            found += _insert_parts(entry.parts)
        found.append(entry)
    return found


def _share_a_fate(one: Entry | Run, other: Entry | Run) -> bool:
    """Return whether neighbours have failed alike, so that both are one run."""
    return (
        (one.attempt, one.due) == (other.attempt, other.due)
        and (one.failures is other.failures or one.failures == other.failures)
        and _joinable(one) is _joinable(other) is not None
    )


def _joinable(run: Entry | Run) -> State | None:
    """Return the state of a run that may be joined with a neighbour."""
    if isinstance(run, Run):
        return State.WAITING
    return run.state if run.state in (State.WAITING, State.DEAD) and run.rows is None else None
