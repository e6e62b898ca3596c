"""The pieces of an outcome that fall to one shard, and the runs that they are once their fates are decided. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.records import NotDone, Order, Run, begin_of, keys_of_piece, orders_of
from kinesis_trident.tracker.retry import Fates, State
from kinesis_trident.tracker.runs import Runs


@dataclass(frozen=True, slots=True)
class FailedPieces:
    """What failed of a turn, in shard order, with the orders of its ends."""

    pieces: Sequence[NotDone]
    firsts: Sequence[Order]
    lasts: Sequence[Order]
    befores: Sequence[Order | None]

    @classmethod
    def of(cls, failed: Sequence[NotDone]) -> FailedPieces:
        """Return pieces that come in any order."""
        sorted_ones = Runs.sort(failed)
        pieces, lasts = list(sorted_ones), sorted_ones.lasts
        texts = [piece.last for piece in pieces]
        starts = [piece.first or str(begin_of(piece)) for piece in pieces]
        known = iter(orders_of([piece.prev for piece in pieces if piece.prev is not None]))
        return cls(
            pieces,
            lasts if starts == texts else orders_of(starts),
            lasts,
            [None if piece.prev is None else next(known) for piece in pieces],
        )

    def fail(self, run: Run, start: int, stop: int, fates: Fates) -> list[tuple[State, Run]]:
        """Return what becomes of the delivered records of a run: of the pieces in between, which have failed.

        The record before the run is one, known or done, that all of it comes after: with nothing between it and the
        first one that is neither delivered nor done.

        A reporter sees rows, not the shard: the row before a run's first record may be of another run. So the
        `prev` of a piece counts only inside the run; one before it says that the piece is the run's beginning.

        Raises:
            OrderError: the failed pieces overlap, lie outside of the run, or hold more records than it.
        """
        if start == stop:
            return []
        count, until = run.count, run.last
        total = sum([piece.count for piece in self.pieces[start:stop]])
        if total > count:
            msg = f"{total} records are reported as failed among {count} delivered up to {until}"
            raise OrderError(msg)
        end, end_text = (None if run.prev is None else orders_of([run.prev])[0]), run.prev
        attempt, decide = run.attempt + 1, fates.decide_text
        first, last = (orders_of([run.first])[0] if run.first else None), orders_of([until])[0]
        found = list[tuple[State, Run]]()
        for at in range(start, stop):
            piece, begin, stand = self.pieces[at], self.firsts[at], self.lasts[at]
            if (
                stand < begin
                or piece.count < 1
                or stand > last
                or (first is not None and begin < first)
                or (end is not None and begin <= end)
            ):
                msg = (
                    f"failed records {piece.first} to {piece.last} ({piece.count}) overlap others, or lie "
                    f"outside of the {count} delivered after {run.prev}"
                )
                raise OrderError(msg)
            before = piece.prev
            if total == count or begin == first:
                # Nothing is done in between, or it is the run's own first record.
                before = end_text
            elif before is not None:
                known, lowest = self.befores[at], end if end is not None else first
                if known is None or known >= begin or (lowest is not None and known < lowest):
                    # Seen after a row of another run: so it is the first of this one.
                    before = None if found else end_text
            fate = decide(piece.text, attempt, run.failures, run.due)
            keys = keys_of_piece(piece)
            found.append((fate.state, Run(piece.first, piece.last, piece.count, before, *fate[1:], keys)))
            end, end_text = stand, piece.last
        return found
