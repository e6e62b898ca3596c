"""The settling of a turn among the open records of its shard: a pass over the due runs, then the new records.

Pure, but for the dice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from kinesis_trident.tracker.errors import OrderError, UnknownRunError
from kinesis_trident.tracker.failed_pieces import FailedPieces
from kinesis_trident.tracker.failure import OF_ANOTHER_STREAM, Failure, Kind
from kinesis_trident.tracker.given_turns import GivenTurn, fail_given, give
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import find, keys_of_texts
from kinesis_trident.tracker.records import (
    NotDone,
    Order,
    RecordPosition,
    Run,
    begin_of,
    keys_of_piece,
    orders_of,
)
from kinesis_trident.tracker.retry import Fates, State
from kinesis_trident.tracker.runs import Edit, Runs, cut

_EXPIRED = Failure(Kind.EXPIRED)


class TurnFacts(msgspec.Struct, frozen=True):
    """A turn that ran: it has delivered runs that were due, and new records after them.

    Attributes:
        due: in shard order, each with True if it is dead, and dead-lettered instead.
        served: how many records of each were found, -1 or nothing if it was not reached.
        failed: the outcome.
        through: how far the stream was read for the due runs.
        missing: the indexes of those of which records are gone from the stream.
        invalid: those of these that were never in it.
        fresh: the last new record, and their number.
        given: the records wait for their acks instead of being done with their batch.
    """

    due: Sequence[tuple[Run, bool]] = ()
    served: Sequence[int] = ()
    failed: Sequence[NotDone] = ()
    through: str | None = None
    missing: Collection[int] = ()
    invalid: Collection[int] = ()
    fresh: tuple[str, int] | None = None
    given: GivenTurn | None = None


def settle(shard: OpenShard, turn: TurnFacts, fates: Fates) -> tuple[OpenShard, list[Run]]:
    """Return a shard after a turn, and the runs, or parts of runs, that the turn has dead-lettered.

    Of what a turn has served, failed pieces have failed once more: they wait again, or are dead when the retries are
    used up; the rest of what was served is done; what was not reached waits on unchanged. A stream drops its oldest
    records, so those gone are a run's first ones, and the served ones its last.

    Raises:
        UnknownRunError: a run is not due here.
        OrderError: the numbers, or the pieces that failed, do not fit.
    """
    settling = _Settling(shard, turn, fates)
    settling.settle_due()
    if turn.fresh is not None:
        settling.settle_new(*turn.fresh)
    return settling.shard_after(), settling.buried


class _Settling:
    """One turn of a shard: what becomes of its runs, to be applied at once."""

    def __init__(self, shard: OpenShard, turn: TurnFacts, fates: Fates) -> None:
        self.buried: list[Run] = []
        self._shard = shard
        self._turn = turn
        self._fates = fates
        self._failed = FailedPieces.of(turn.failed)
        self._of_due = 0
        self._waiting: list[Edit] = []
        self._dead: list[Edit] = []
        self._exhausted: list[Run] = []
        self._done: list[str] = []
        self._again: list[tuple[Run | None, int, str]] = []
        self._high = shard.high

    def settle_due(self) -> None:
        """Settle the runs that were due."""
        turn, failed, decide = self._turn, self._failed, self._fates.decide_text
        gone = dict.fromkeys(turn.missing, _EXPIRED) | dict.fromkeys(turn.invalid, OF_ANOTHER_STREAM)
        waiting, dead = self._shard.waiting, self._shard.dead
        edits, done, is_given = self._waiting, self._done, turn.given is not None
        known = at_waiting = at_dead = 0
        lasts = orders_of([run.last for run, _ in turn.due])
        orders, size = waiting.lasts, len(waiting)
        for index, ((run, is_dead), last) in enumerate(zip(turn.due, lasts, strict=True)):
            count = turn.served[index] if index < len(turn.served) else -1
            start = known
            if failed.lasts:
                known = bisect_right(failed.lasts, last, known)
            if count < 0:
                continue
            runs: Runs[Run] = dead if is_dead else waiting
            at: int | None = at_waiting
            if is_dead or at_waiting == size or orders[at_waiting] != last:
                at = runs.find_named(last, at_dead if is_dead else at_waiting)
            mine = None if at is None else runs[at]
            if at is None or mine is None or mine.attempt != run.attempt or mine.count != run.count:
                raise self._unknown(run, is_dead=is_dead)
            if is_dead:
                at_dead = at + 1
                self._bury(at, mine, run.count if index in gone else count, last, is_whole=index in gone)
                continue
            at_waiting = at + 1
            if index in gone:
                self._expire(at, mine, count, gone[index], start, known)
                continue
            if count == mine.count and not is_given:
                # Nearly every retry: it is done, or has failed again as it is.
                if known == start:
                    edits.append((at, at + 1, ()))
                    done.append(mine.last)
                    continue
                piece, first = failed.pieces[start], mine.first
                if known == start + 1 and (piece.first, piece.last, piece.count) == (first, mine.last, count):
                    fate = decide(piece.text, mine.attempt + 1, mine.failures, mine.due)
                    again = Run(first, mine.last, count, mine.prev, *fate[1:], keys_of_piece(piece))
                    if fate.state is State.DEAD:
                        self._exhausted.append(again)
                    edits.append((at, at + 1, (again,) if fate.state is State.WAITING else ()))
                    if fate.state is State.ACKED:
                        done.append(mine.last)
                    continue
            self._serve(at, mine, count, start, known)
        self._of_due = known

    def _unknown(self, run: Run, *, is_dead: bool) -> UnknownRunError:
        state = "dead" if is_dead else "waiting"
        msg = (
            f"no {state} run of {run.count} records up to {run.last} after delivery {run.attempt} (checkpoint "
            f"{self._shard.safe}): it was settled before, or planned elsewhere"
        )
        return UnknownRunError(msg)

    def _put(self, at: int, run: Run, parts: Sequence[Run]) -> None:
        """Let these stand in the place of a waiting run."""
        self._waiting.append((at, at + 1, parts))
        self._done.append(run.last)

    def _bury(self, at: int, run: Run, count: int, last: Order, *, is_whole: bool) -> None:
        """A dead run was dead-lettered: the first `count` of its records."""
        reached = run.last if is_whole else self._find_reached(run, count, last)
        if count == 0:
            return
        head, rest = cut(run, count, reached)
        self._dead.append((at, at + 1, rest))
        self._done.append(run.last)
        self.buried.append(head)

    def _find_reached(self, run: Run, count: int, last: Order, *, has_failed: bool = False) -> str:
        """Return the last of the first `count` records of a run: where the stream was read until, or its last one.

        Raises:
            OrderError: these do not fit the run.
        """
        through = self._turn.through
        if not 0 <= count <= run.count or (count == 0 and has_failed):
            failed = ", some of which failed," if has_failed else ""
            msg = f"{count} records served{failed} of the {run.count} up to {run.last}"
            raise OrderError(msg)
        if count in (0, run.count):
            return run.last
        until = None if through is None else orders_of([through])[0]
        if through is None or until is None or not begin_of(run).order <= until < last:
            msg = (
                f"{count} of {run.count} records up to {run.last} were served, but the last one is {through}"
            )
            raise OrderError(msg)
        return through

    def _serve(self, at: int, run: Run, count: int, start: int, stop: int) -> None:
        """The first `count` records of a waiting run were delivered again, of which the pieces in between failed."""
        last = self._shard.waiting.lasts[at]
        is_given = self._turn.given is not None
        reached = self._find_reached(run, count, last, has_failed=start < stop and not is_given)
        if count == 0:
            return
        head, rest = cut(run, count, reached)
        if is_given:
            self._again.append((head, count, reached))
            known = self._shard.held.rest_of(run, count, reached) if rest else []
            self._waiting.append((at, at + 1, known or rest))
            return
        self._put(at, run, [*self._failed_in(head, start, stop), *rest])

    def _expire(self, at: int, run: Run, count: int, failure: Failure, start: int, stop: int) -> None:
        """All but the last `count` records of a waiting run are gone from the stream: dead, with no more retries.

        Where the first one of those that are left stands is not known: the dead run ends with the last position that
        is known to be gone. If that one came again, all are dead with it: no two runs are in one place.
        """
        if not 0 <= count < run.count:
            msg = f"{count} records found of {run.count} up to {run.last}: then none are gone"
            raise OrderError(msg)
        fate = self._fates.decide(failure, run.attempt, run.failures)
        # A run has a first record, or one before it, which is the case after it came again in part.
        gone_until = str(begin_of(run))
        left = msgspec.structs.replace(run, first="", count=count, prev=gone_until) if count else None
        if left is not None and self._is_there(gone_until, start, stop):
            # The records that are gone have no other place.
            left = None if fate.state is State.DEAD else msgspec.structs.replace(run, count=count)
        if count:
            self._again.append((left, count, run.last))
        until, gone = (run.last, run.count) if left is None else (gone_until, run.count - count)
        if fate.state is State.DEAD:
            self._exhausted.append(Run(run.first, until, gone, run.prev, *fate[1:]))
        else:
            self._done.append(until)
        judged = left if self._turn.given is None else None
        self._put(at, run, self._failed_in(judged, start, stop) if judged is not None else ())

    def _is_there(self, text: str, start: int, stop: int) -> bool:
        """Return whether a record is known to have come again: one of the rows, or the first piece in between."""
        if self._turn.given is not None:
            return bool(find(self._turn.given.keys, keys_of_texts([text]))[1][0])
        return start < stop and self._failed.firsts[start] == orders_of([text])[0]

    def settle_new(self, last: str, count: int) -> None:
        """New records of a turn ran, `count` of them up to `last`: all are done but the failed pieces.

        The checkpoint becomes the record before the first one that is not done: exactly, where the piece
        names it (`NotDone.prev`) or nothing is done in between, else the last record below it that is known
        to be done.

        Raises:
            OrderError: `last` is not after all that was delivered before, or the pieces do not fit.
        """
        position, high = RecordPosition.parse(last), self._shard.high
        if count < 1 or (high is not None and position <= high):
            msg = f"{count} new records up to {last}: expected some, after {high}"
            raise OrderError(msg)
        new = Run("", last, count, None if high is None else str(high), attempt=0)
        end = len(self._shard.waiting)
        self._waiting.append((end, end, self._failed_in(new, self._of_due, len(self._failed.pieces))))
        self._high = position

    def _failed_in(self, run: Run, start: int, stop: int) -> list[Run]:
        """Return what waits of the delivered records of a run: the others that have failed are dead, or done."""
        waiting = list[Run]()
        for state, part in self._failed.fail(run, start, stop, self._fates):
            if state is State.ACKED:
                self._done.append(part.last)
            else:
                (waiting if state is State.WAITING else self._exhausted).append(part)
        return waiting

    def shard_after(self) -> OpenShard:
        """Return the shard after the turn."""
        shard, turn = self._shard, self._turn
        after = shard.change(self._waiting, self._dead, exhausted=self._exhausted)
        after = replace(after, high=self._high)
        if turn.given is not None:
            after = give(after, turn.given, self._again)
            after, done = fail_given(after, turn.given.txid, self._failed.pieces, self._fates)
            self._done += done
        return after.at_rest(lambda: self._done)
