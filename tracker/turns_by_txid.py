"""The turns of one shard whose records are not done: where records and runs are found in them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.held_turns import HeldTurn, Rows, misfit
from kinesis_trident.tracker.position_keys import (
    Keys,
    count_through,
    find,
    keys_of_texts,
    merge_keys,
)
from kinesis_trident.tracker.records import Order, PendingRun, RecordPosition, Run, orders_of
from kinesis_trident.tracker.retry import Fate, Fates
from kinesis_trident.tracker.runs import Runs

_FEW = 16


class HeldTurns(dict[int, HeldTurn]):
    """The turns of a shard whose records wait for their acks, or are in runs that wait, by txid. They never change."""

    @classmethod
    def read(cls, turns: Mapping[int, Keys], pending: Sequence[PendingRun]) -> HeldTurns:
        """Return turns as they are stored: the keys of all their rows, and what waits of them.

        Raises:
            OrderError: what waits is of none of the turns, or does not fit its turn.
        """
        by_txid: dict[int, list[PendingRun]] = {txid: [] for txid in sorted(turns)}
        for run in pending:
            if run.txid not in by_txid:
                raise misfit(run, "unknown")
            by_txid[run.txid].append(run)
        return cls({txid: HeldTurn.read(txid, turns[txid], runs) for txid, runs in by_txid.items()})

    @property
    def count(self) -> int:
        """The number of records that wait for their acks."""
        return sum([turn.count for turn in self.values()])

    @property
    def records(self) -> dict[int, Keys]:
        """The records of each turn."""
        return {txid: turn.keys for txid, turn in self.items()}

    def change(self, some: Mapping[int, Rows], change: Callable[[HeldTurn, Rows], HeldTurn]) -> HeldTurns:
        """Return these with a change of some rows."""
        return HeldTurns(self | {txid: change(self[txid], rows) for txid, rows in some.items()})

    def fail(
        self, some: Mapping[int, Rows], failure: Failure, fates: Fates, safe: RecordPosition | None
    ) -> tuple[HeldTurns, list[tuple[Fate, Run]]]:
        """Return these once rows, which wait, have failed, and the runs that these are then: none goes over `safe`."""
        held, parts = HeldTurns(self), list[tuple[Fate, Run]]()
        for txid, rows in some.items():
            held[txid], failed = self[txid].fail(rows, failure, fates, count_through(self[txid].keys, safe))
            parts += failed
        return held, parts

    def spans(self, safe: RecordPosition | None) -> list[tuple[Keys, Keys]]:
        """Return the first and the last records of what waits, as neighbours of one delivery, in each turn."""
        return [turn.spans(count_through(turn.keys, safe)) for turn in self.values()]

    def pending(self, safe: RecordPosition | None) -> tuple[PendingRun, ...]:
        """Return what waits as it is stored, in shard order."""
        found = [
            (turn.keys.at(row).order, run)
            for turn in self.values()
            for row, run in turn.pending(count_through(turn.keys, safe))
        ]
        return tuple([run for _, run in sorted(found, key=lambda one: one[0])])

    def first_open(self, safe: RecordPosition | None) -> Iterator[tuple[Order, str, str | None]]:
        """Yield the first record of each turn above the checkpoint that waits: its order, it, and the one before."""
        for turn in self.values():
            row = turn.first_waiting(count_through(turn.keys, safe))
            if row is not None:
                first = turn.keys.at(row)
                yield first.order, str(first), turn.before(row)

    def in_use(self, *open_runs: Runs[Run]) -> HeldTurns:
        """Return those that have records that wait, or are in one of the runs: they must be kept for their acks."""
        return HeldTurns({txid: turn for txid, turn in self.items() if self._is_in_use(turn, open_runs)})

    def _is_in_use(self, turn: HeldTurn, open_runs: Sequence[Runs[Run]]) -> bool:
        if turn.first_waiting() is not None:
            return True
        for runs in open_runs if len(turn.keys) else ():
            at, end = runs.find(turn.keys.at(0).order), runs.first_after(turn.keys.at(-1).order)
            size = _FEW
            while at < end:
                # Nearly always one of the first is found there.
                some = self.locate(runs[at : min(at + size, end)]).values()
                if any(txid == turn.txid for txid, _ in some):
                    return True
                at, size = at + size, 4 * size
        return False

    def locate(self, runs: Sequence[Run]) -> dict[int, tuple[int, int]]:
        """Return the txid and first row of runs, by index: of the newest turn that has all of their records."""
        found = dict[int, tuple[int, int]]()
        indexes: Sequence[int] = range(len(runs))
        for txid in sorted(self, reverse=True):
            if not indexes:
                break
            starts = self[txid].locate([runs[index] for index in indexes])
            pairs = list(zip(indexes, starts, strict=True))
            found.update({index: (txid, start) for index, start in pairs if start >= 0})
            indexes = [index for index, start in pairs if start < 0]
        return found

    def rest_of(self, run: Run, served: int, reached: str) -> list[Run]:
        """Return a run without its first records, of which `reached` is the last, if a turn has just these."""
        for txid, start in self.locate([run]).values():
            # Where some of them are gone from the stream, more rows are over than were served.
            if self[txid].keys.at(start + served - 1).order == orders_of([reached])[0]:
                return self[txid].cut(run, start, np.arange(start, start + served))
        return []

    def find_late(self, now_at: int) -> dict[int, Rows]:
        """Return the rows whose deadline is over, by turn."""
        late = {txid: turn.find_late(now_at) for txid, turn in self.items()}
        return {txid: rows for txid, rows in late.items() if len(rows)}

    def find_named(self, keys: Keys, attempt: int | None) -> tuple[Keys, dict[int, Rows], dict[int, Rows]]:
        """Return keys in order, each once, the rows that they name, and those that wait in a delivery, by turn."""
        wanted = merge_keys([keys])
        hits = {txid: find(turn.keys, wanted)[0] for txid, turn in self.items()}
        chosen = {txid: self[txid].choose(rows, attempt) for txid, rows in hits.items() if len(rows)}
        return wanted, hits, {txid: rows for txid, rows in chosen.items() if len(rows)}

    def take_out(
        self, runs: Runs[Run], wanted: Keys, hits: Mapping[int, Rows], gone: list[str]
    ) -> tuple[Runs[Run], int]:
        """Return runs without records that are acked by name, and how many these are; `gone` gets runs' last ones.

        They are found in the turn that has them. One that no turn has is alone in its run: there because of a replay.
        """
        some: Sequence[int] = range(len(runs))
        if len(wanted) < len(runs):
            orders = [position.order for position in wanted.positions]
            some = sorted({*map(runs.find, orders)} - {len(runs)})
        chosen = [runs[at] for at in some]
        located = self.locate(chosen)
        alone = [index for index, run in enumerate(chosen) if index not in located and run.count == 1]
        _, are_wanted = find(wanted, keys_of_texts([chosen[index].last for index in alone]))
        edits: dict[int, Sequence[Run]] = {
            index: () for index, is_wanted in zip(alone, are_wanted.tolist(), strict=True) if is_wanted
        }
        count = len(edits)
        for index, (txid, start) in located.items():
            rows, run = hits[txid], chosen[index]
            taken = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + run.count)]
            if len(taken):
                edits[index] = self[txid].cut(run, start, taken)
                count += len(taken)
        gone += [
            chosen[at].last for at, left in edits.items() if not left or left[-1].last != chosen[at].last
        ]
        return runs.change([(some[index], some[index] + 1, edits[index]) for index in sorted(edits)]), count
