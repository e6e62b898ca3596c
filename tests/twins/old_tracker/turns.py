"""The outcomes of batches that judge their records: what a turn delivered is settled in one call."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import gt
from typing import Any

from twins.old_tracker.bulk import BulkTracking
from twins.old_tracker.dice import Dice
from twins.old_tracker.entries import (
    Entry,
    as_entry,
    make_failed_run,
    parse_place,
)
from twins.old_tracker.places import PARSED, Place, sort_in_shard_order
from twins.old_tracker.runs import OpenRuns

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.failure import OF_ANOTHER_STREAM, Failure, Kind, parse
from kinesis_trident.tracker.records import NotDone, Noted, RecordPosition, Run
from kinesis_trident.tracker.retry import Fate, State, decide

_EXPIRED = Failure(Kind.EXPIRED)

Buried = tuple[Run, int, Place]
"""A dead run that was dead-lettered, the number of its records that were, and the last of these."""


class TurnOutcomes:
    """The outcomes of a shard's records in a batch. Only `settle` may raise after it has changed something."""

    def __init__(self, runs: OpenRuns, bulk: BulkTracking) -> None:
        self._runs = runs
        self._bulk = bulk
        self._known: dict[tuple[int, int, str], tuple[tuple[Noted, ...], Fate]] = {}
        self._dice = Dice(runs.policy, 0)

    def settle(
        self,
        due: Sequence[tuple[Run, bool]],
        served: Sequence[int],
        failed: Sequence[NotDone],
        now_ms: int,
        rng: random.Random,
        *,
        through: str | None = None,
        missing: Collection[int] = (),
        invalid: Collection[int] = (),
        fresh: tuple[str, int] | None = None,
        given: Callable[[Entry, int, Place], None] | None = None,
    ) -> list[Buried]:
        """A turn ran: it has delivered runs that were due, and new records after them.

        `due`: in shard order, each with True if it is dead, and dead-lettered instead; `served`: how many records of
        each were found, -1 or nothing if it was not reached. `failed`: the outcome. `through`: how far the stream was
        read for the due runs. `missing`: the indexes of those of which records are gone from the stream; `invalid`:
        those of these that were never in it. `fresh`: the last new record, and their number. With `given`, runs that
        come again and new records wait for their acks, and it is called with each such run, the number of its records
        and the last of them.

        Raises:
            UnknownRunError: a run is not due here.
            OrderError: the numbers, or the pieces that failed, do not fit.
        """
        runs = self._runs
        if given is not None or not all(due[index][0].first for index in missing):
            runs.parse()
        runs.admit(_positions_of(failed, through, fresh))
        pieces = sort_in_shard_order(failed) if len(failed) > 1 else failed
        read_until = None if through is None else runs.places([through])[0]
        buried, seen = list[Buried](), 0
        if due:
            buried, seen = self._settle_due(
                due,
                served,
                pieces,
                dict.fromkeys(missing, _EXPIRED) | dict.fromkeys(invalid, OF_ANOTHER_STREAM),
                now_ms,
                rng,
                read_until=read_until,
                given=given,
            )
        if fresh is not None:
            self._deliver(runs.places([fresh[0]])[0], fresh[1], pieces[seen:], now_ms, rng)
        return buried

    def _settle_due(
        self,
        due: Sequence[tuple[Run, bool]],
        served: Sequence[int],
        pieces: Sequence[NotDone],
        gone: Mapping[int, Failure],
        now_ms: int,
        rng: random.Random,
        *,
        read_until: Place | None,
        given: Callable[[Entry, int, Place], None] | None,
    ) -> tuple[list[Buried], int]:
        """Settle the runs that were due; return also how many of the pieces belong to them."""
        runs, buried = self._runs, list[Buried]()
        ends = runs.places([piece.last for piece in pieces])
        found, at, seen = [*runs.behind, *runs.entries], 0, 0
        is_plain, after, changed = given is None, self._decide, runs.changed
        runs.leave_untidy()
        lasts = runs.places([run.last for run, _ in due])
        for index, ((run, is_dead), last) in enumerate(zip(due, lasts, strict=True)):
            count = served[index] if index < len(served) else -1
            start = seen
            if ends:
                seen = bisect_right(ends, last, seen)
            if count < 0:
                continue
            while at < len(found) and found[at].last != last:
                at += 1
            mine = found[at] if at < len(found) else None
            here, at = at, at + 1
            if type(mine) is Run and mine.count == count == run.count and mine.attempt == run.attempt:
                # Nearly every retry: it is done, or has failed again as it is.
                if is_plain and not is_dead and seen == start and index not in gone:
                    found[here] = last
                    continue
                piece = pieces[start] if is_plain and not is_dead and seen == start + 1 else None
                if piece is not None and (piece.first, piece.last, piece.count) == (run.first, last, count):
                    fate = after(mine.attempt + 1, mine.failures, piece.text, now_ms, rng)
                    found[here] = make_failed_run(mine.first, last, count, mine.prev, fate, runs.round)
                    changed.add(last)
                    continue
            entry = found[here] = runs.check(run, State.DEAD if is_dead else State.WAITING, as_entry(mine))
            is_gone = index in gone
            reached = last if read_until is None or is_gone or count == run.count else min(read_until, last)
            if is_dead:
                count = run.count if is_gone else count
                self._serve(entry, count, reached)
                buried += [(run, count, reached)] if count else ()
                continue
            again = self._expire(entry, count, now_ms, gone[index]) if is_gone else entry
            if again is not None and given is not None:
                given(again, count, reached)
            elif again is not None:
                self._redeliver(again, count, reached, pieces[start:seen], now_ms, rng)
        behind = len(runs.behind)
        runs.behind, runs.entries = found[:behind], found[behind:]
        return buried, seen

    def deliver(
        self,
        last: RecordPosition | str,
        count: int,
        failed: Sequence[NotDone],
        now_ms: int,
        rng: random.Random,
    ) -> None:
        """New records of a turn ran, `count` of them up to `last`: all are done but the failed pieces.

        The checkpoint becomes the record before the first one that is not done: exactly, where the piece
        names it (`NotDone.prev`) or nothing is done in between, else the last record below it that is known
        to be done.

        Raises:
            OrderError: `last` is not after all that was delivered before, or the pieces do not fit.
        """
        self._deliver(self._runs.place(last), count, failed, now_ms, rng)

    def _deliver(
        self, last: Place, count: int, failed: Sequence[NotDone], now_ms: int, rng: random.Random
    ) -> None:
        runs = self._runs
        high = runs.high
        if count < 1 or (high is not None and last <= high):
            msg = f"{count} new records up to {last}: expected some, after {high}"
            raise OrderError(msg)
        whole = Entry(last, None, count, high, attempt=0)
        runs.extend(self._failed_parts(whole, failed, count, last, now_ms, rng, as_stored=True), last)

    def redeliver(
        self,
        run: Run,
        served: int,
        through: RecordPosition | str | None,
        failed: Sequence[NotDone],
        now_ms: int,
        rng: random.Random,
    ) -> None:
        """A waiting run was delivered again: `served` of its records, in shard order, up to `through`.

        Failed pieces have failed once more: they wait again, or are dead when the retries are used up; the
        rest of what was served is done; what was not reached waits on unchanged. `through` may be None when all
        records were served. Of a run whose records are partly gone from the stream, tell `expire` first, and
        give what it returns here.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: `served` or `through` do not fit the run, or the pieces do not fit what was served.
        """
        self._redeliver(self._runs.find_run(run, State.WAITING), served, through, failed, now_ms, rng)

    def _redeliver(
        self,
        entry: Entry,
        served: int,
        through: RecordPosition | str | None,
        failed: Sequence[NotDone],
        now_ms: int,
        rng: random.Random,
    ) -> None:
        runs = self._runs
        last = runs.find_served_until(entry, served, through, has_failed=bool(failed))
        if last is not None:
            parts = self._failed_parts(entry, failed, served, last, now_ms, rng)
            if served < entry.count:
                parts += _rest(entry, served, last)
            runs.replace(entry, parts)

    def dead_letter(self, run: Run, served: int, through: RecordPosition | str | None) -> None:
        """A dead run was dead-lettered: `served` records of it, in shard order, up to `through`: done.

        `through` may be None when all of them were. Records written without their payload, because the stream no
        longer holds them, count as served.

        Raises:
            UnknownRunError: no such run is dead here.
            OrderError: `served` or `through` do not fit the run.
        """
        self._serve(self._runs.find_run(run, State.DEAD), served, through)

    def _serve(self, entry: Entry, served: int, through: RecordPosition | str | None) -> None:
        last = self._runs.find_served_until(entry, served, through)
        if last is not None:
            self._runs.replace(entry, _rest(entry, served, last))

    def expire(self, run: Run, served: int, now_ms: int) -> Run | None:
        """All but `served` records of a waiting run are gone from the stream: dead, with no more retries.

        A stream drops its oldest records, so those gone are the run's first ones, and the served ones its
        last. Where the first served one stands is not known: the dead run then ends with the last position
        that is known to be gone. Returns the run of the served ones, for `redeliver`; None when there are
        none.

        Raises:
            UnknownRunError: no such run waits here.
            OrderError: `served` is negative, or not below the run's count.
        """
        runs = self._runs
        if not run.first:
            runs.parse()
        rest = self._expire(runs.find_run(run, State.WAITING), served, now_ms)
        return None if rest is None else rest.run()

    def _expire(self, entry: Entry, served: int, now_ms: int, failure: Failure = _EXPIRED) -> Entry | None:
        runs = self._runs
        if not 0 <= served < entry.count:
            msg = f"{served} records found of {entry.count} up to {entry.last}: then none are gone"
            raise OrderError(msg)
        fate = decide(failure, entry.attempt, entry.failures, runs.policy, now_ms, lambda _: None)
        if not served:
            entry.become(*fate)
            if fate.state is State.ACKED:
                runs.mark_done(entry)
            else:
                runs.touch(entry)
            return None
        # A run has a first record, or one before it, which is the case after it came again in part.
        gone_until = entry.first
        if gone_until is None:
            assert entry.prev is not None
            gone_until = RecordPosition(entry.prev.sequence, entry.prev.sub + 1)
        gone = Entry(
            gone_until,
            entry.first,
            entry.count - served,
            entry.prev,
            *fate,
            touched=runs.round,
        )
        (rest,) = _rest(entry, entry.count - served, gone_until)
        runs.replace(entry, [gone, rest])
        return rest

    def replay(self, positions: Sequence[RecordPosition], now_ms: int) -> tuple[RecordPosition, ...]:
        """Somebody asks for records again: they are due now, with a fresh count (no delivery, no failure).

        A record of a run that waits or is dead takes its whole run along, because a run shares one fate.
        Records done before, at or below the checkpoint too, become runs of their own; the checkpoint does not
        move back for them, and those above it hold it until they are done again. What is pending is being
        delivered: nothing changes. Returns the positions that are refused: beyond what was ever delivered
        here, or known to be none.
        """
        self._runs.parse()
        # Records that are done come again although their neighbours are still pending.
        self._bulk.part_open()
        self._runs.leave_untidy()
        revived: list[Entry] = []
        due = now_ms // 1_000 * 1_000
        refused = [at for at in sorted(set(positions)) if not self._revive(at, due, revived)]
        # All at once: there may be very many, and the runs are tidied up after a change.
        self._runs.take_again(revived)
        return tuple(refused)

    def take_back(self, positions: Sequence[RecordPosition]) -> None:
        """Somebody takes back that done records were asked for again: those that wait, or are dead, are done again.

        One that is in a run with others is done if all of these are meant; what is being delivered stays.
        """
        self._runs.parse()
        meant: dict[RecordPosition, int] = {}
        for position in set(positions):
            entries, index = self._runs.find_from(position)
            if index < len(entries) and entries[index].covers(position):
                last = entries[index].last
                meant[last] = meant.get(last, 0) + 1
        by_last = self._runs.by_last
        for last, count in meant.items():
            entry = by_last.get(last)
            if entry is not None and entry.state in (State.WAITING, State.DEAD) and entry.count == count:
                self._runs.mark_done(entry)

    def bury(self, positions: Sequence[RecordPosition]) -> tuple[RecordPosition, ...]:
        """Somebody gives up runs that wait, each named by its last record: they are dead now, as after the last retry.

        Returns the positions of which no waiting run ends.
        """
        self._runs.parse()
        by_last = self._runs.by_last
        refused: list[RecordPosition] = []
        for position in sorted(set(positions)):
            entry = by_last.get(position)
            if entry is None or entry.state is not State.WAITING:
                refused.append(position)
                continue
            entry.become(State.DEAD, entry.attempt, 0, entry.failures)
            self._runs.touch(entry)
        return tuple(refused)

    def _failed_parts(
        self,
        entry: Entry,
        failed: Sequence[NotDone],
        count: int,
        last: Place,
        now_ms: int,
        rng: random.Random,
        *,
        as_stored: bool = False,
    ) -> list[Any]:
        """Return the parts of an entry that have failed, of its first `count` records, which end with `last`.

        `as_stored`: those that wait as they are stored, if positions are held as texts.

        The entry's `prev` is a record, known or done, that all of them come after: with nothing between it and the
        first one that is neither delivered nor done.

        A reporter sees rows, not the shard: the row before a run's first record may be of another run. So the
        `prev` of a piece counts only inside the run; one before it says that the piece is the run's beginning.

        Raises:
            OrderError: the failed pieces overlap, lie outside of the run, or hold more records than it.
        """
        if not failed:
            return []
        total = sum([piece.count for piece in failed])
        if total > count:
            msg = f"{total} records are reported as failed among {count} delivered up to {last}"
            raise OrderError(msg)
        runs, after, attempt, failures = self._runs, self._decide, entry.attempt + 1, entry.failures
        places, this_round = runs.places, runs.round
        starts: list[Place] = [piece.first for piece in failed]
        known: list[Place | None] = [piece.prev for piece in failed]
        if places is PARSED:
            starts, known = PARSED(starts), list(map(parse_place, known))
        order: Sequence[int] = range(len(starts))
        if len(starts) > 1 and any(map(gt, starts, islice(starts, 1, None))):
            order = sorted(order, key=starts.__getitem__)
        first, end = entry.first, entry.prev
        as_stored = as_stored and places is not PARSED
        parts: list[Any] = []
        for index in order:
            start, piece = starts[index], failed[index]
            stop = start if piece.last == piece.first else places([piece.last])[0]
            if (
                stop < start
                or piece.count < 1
                or stop > last
                or (first is not None and start < first)
                or (end is not None and start <= end)
            ):
                msg = (
                    f"failed records {piece.first} to {piece.last} ({piece.count}) overlap others, or lie "
                    f"outside of the {count} delivered after {entry.prev} from {first} to {last}"
                )
                raise OrderError(msg)
            before = known[index]
            if total == count or start == first:
                # Nothing is done in between, or it is the run's own first record.
                before = end
            elif before is not None:
                lowest = end if end is not None else first
                if before >= start or (lowest is not None and before < lowest):
                    # Seen after a row of another run: so it is the first of this one.
                    before = None if parts else end
            fate = after(attempt, failures, piece.text, now_ms, rng)
            if as_stored:
                parts.append(make_failed_run(start, stop, piece.count, before, fate, this_round))
            else:
                parts.append(Entry(stop, start, piece.count, before, *fate, touched=this_round))
            end = stop
        return parts

    def _decide(
        self, attempt: int, before: tuple[Noted, ...], text: str, now_ms: int, rng: random.Random
    ) -> Fate:
        """Return the fate of records that failed: those that fail together for the same reason share theirs."""
        policy = self._runs.policy
        if self._dice.now_ms != now_ms:
            self._known, self._dice = {}, Dice(policy, now_ms)
        # Their failures are mostly the same object. It is kept, so that no other one gets its id.
        key = attempt, id(before), text
        known = self._known.get(key)
        if known is None:
            fate = decide(parse(text), attempt, before, policy, now_ms, partial(self._dice.draw, rng=rng))
            known = self._known[key] = before, fate
        return known[1]

    def _revive(self, position: RecordPosition, due: int, revived: list[Entry]) -> bool:
        """Make a record due with a fresh count, for `take_again`; False when there is no such record."""
        runs = self._runs
        if runs.high is None or position > runs.high:
            return False
        entries, index = runs.find_from(position)
        following = entries[index] if index < len(entries) else None
        if following is not None and following.covers(position):
            if following.state is not State.PENDING:
                following.become(State.WAITING, 0, due, ())
                revived.append(following)
            return True
        if following is not None and following.prev is not None and following.prev < position:
            return False
        entry = Entry(position, position, 1, None, State.WAITING, 0, due)
        if following is not None and following.floor is not None and following.floor < position:
            entry.floor = following.floor
        revived.append(entry)
        return True


def _rest(entry: Entry, served: int, through: Place) -> list[Entry]:
    """Return the part of a run that was not reached, unchanged: its records after `through`."""
    if served == entry.count:
        return []
    fate = entry.state, entry.attempt, entry.due, entry.failures
    return [Entry(entry.last, None, entry.count - served, through, *fate)]


def _positions_of(failed: Sequence[NotDone], through: str | None, fresh: tuple[str, int] | None) -> list[str]:
    """Return the positions that a turn names."""
    texts = [piece.last for piece in failed]
    texts += [piece.first for piece in failed if piece.first is not piece.last]
    texts += [piece.prev for piece in failed if piece.prev is not None]
    texts += [text for text in (through, fresh and fresh[0]) if text]
    return texts
