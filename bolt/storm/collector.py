"""The collector of one bolt task: its emits, acks and fails, and the trees of its tuples."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from reprlib import repr as short_repr
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.errors import EmitError, OperatorError
from kinesis_trident.bolt.steps.columns import FLUSH_BYTES, Columns, batch_of, size_of
from kinesis_trident.bolt.steps.functions import failures, reason_of
from kinesis_trident.bolt.storm.api import BasicBolt, Bolt, Tuple
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of, child_edges, salt_of
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID
from kinesis_trident.tracker.reasons import REASON_LENGTH

__all__ = ["NOT_ACKED", "Collector", "Given", "HeldTuple", "named"]

NOT_ACKED = "NOT_ACKED"
_NAME_LENGTH = 100

_FLUSH_ROWS = 10_000

log = logging.getLogger(__name__)


class Given:
    """An input batch."""

    __slots__ = ("anchors", "failed", "message_ids")

    def __init__(self, batch: pa.RecordBatch, tracked: bool) -> None:
        self.anchors = anchors_of(batch) if tracked else None
        self.message_ids = batch.column(MESSAGE_ID) if MESSAGE_ID in batch.schema.names else None
        self.failed: dict[int, str] = {}

    def anchors_at(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the roots and the edges of a row."""
        if self.anchors is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        offsets = self.anchors.offsets
        span = slice(row, row + 1) if offsets is None else slice(offsets[row], offsets[row + 1])
        return self.anchors.roots[span], self.anchors.edges[span]


class HeldTuple(Tuple):
    """A tuple with its place in the trees. `children`: the number of tuples anchored to it so far."""

    __slots__ = ("answered", "children", "given")

    def __init__(
        self, columns: Columns, row: int, fields: Sequence[str], component: str, given: Given
    ) -> None:
        super().__init__(columns, row, fields, component)
        self.given = given
        self.children = 0
        self.answered = False

    @property
    def row(self) -> int:
        """The tuple's row in the batch."""
        return self._row


@dataclass
class _Emitted:
    """Emitted tuples: their values, and for each its {root: edge}. `size`: the bytes of texts and binaries."""

    values: list[tuple[Any, ...]] = field(default_factory=list)
    trees: list[dict[int, int]] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Emitted tuples as an Arrow batch, with their trees."""

    rows: pa.RecordBatch
    trees: list[dict[int, int]]


class Collector:
    """The collector that bolts get, and the state of their tuples.

    `schema`: of the tuples that the bolt emits. If it is not `tracked`, acks and fails have no effect. `of_source`:
    its tuples are the source's rows. `taken` False: no component takes the emitted tuples, which are only checked.
    """

    def __init__(
        self,
        component: str,
        schema: pa.Schema,
        ledger: OperatorLedger,
        *,
        tracked: bool,
        of_source: bool,
        taken: bool = True,
    ) -> None:
        self._component = component
        self._schema = schema
        self._ledger = ledger
        self._tracked = tracked
        self._of_source = of_source
        self._taken = taken
        self._salt = salt_of(component)
        self._batch: Given | None = None
        self._pending: dict[int, HeldTuple] = {}
        self._mistake: OperatorError | None = None
        self._current: HeldTuple | None = None
        self._unfit: list[EmitError] = []
        self._untracked_failures = 0
        self._first_untold = ""
        self._emitted = _Emitted()
        self._parts: list[_Part] = []
        # What the current tuple has emitted begins here.
        self._first_value = self._first_part = 0

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple."""
        given: object = values
        if isinstance(given, Tuple):
            msg = (
                f"bolt {self._component!r} emitted a tuple in place of values. Give the values first, then the "
                "anchors, as in emit([word], tup); to pass a tuple on, call emit(list(tup), tup)"
            )
            self._refuse(msg)
        several: object = anchors
        parents = several if isinstance(several, Iterable) and not isinstance(several, Tuple) else (several,)
        in_order = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
        if not in_order or len(values) != len(self._schema):
            self._refuse_values(values, parents)
        tree: dict[int, int] = {}
        for parent in parents:
            self._require_tuple(parent, "an anchor")
            assert isinstance(parent, HeldTuple)
            if not self._tracked:
                continue
            roots, edges = parent.given.anchors_at(parent.row)
            if not self._taken:
                tree |= dict.fromkeys(roots.tolist(), 0)
                continue
            numbers = np.full(len(roots), parent.children)
            parent.children += 1
            children = child_edges(edges, self._salt, numbers)
            for root, edge in zip(roots.tolist(), children.tolist(), strict=True):
                tree[root] = tree.get(root, 0) ^ edge
        emitted, row = self._emitted, tuple(values)
        emitted.values.append(row)
        emitted.trees.append(tree)
        emitted.size += size_of(row)
        if emitted.size >= FLUSH_BYTES:
            self._pack()

    @property
    def is_full(self) -> bool:
        """True if enough is emitted for a `flush`."""
        return bool(self._parts) or len(self._emitted.values) >= _FLUSH_ROWS

    def drop_emitted(self) -> None:
        """Drop what the current tuple has emitted."""
        del self._emitted.values[self._first_value :], self._emitted.trees[self._first_value :]
        del self._parts[self._first_part :]

    def ack(self, tup: Tuple) -> None:
        """Ack the tuple: it is processed."""
        self._require_tuple(tup, "what it acked")
        assert isinstance(tup, HeldTuple)
        tup.answered = True
        self._pending.pop(id(tup), None)

    def fail(self, tup: Tuple, reason: object = "FAILED") -> None:
        """Fail the tuple. `reason`: a text, or an exception."""
        self._require_tuple(tup, "what it failed")
        assert isinstance(tup, HeldTuple)
        if not tup.answered:
            self._fail(tup, "FAILED" if reason is None else reason)

    def reset_timeout(self, tup: Tuple) -> None:
        """Do nothing: a tuple has time until its task ends."""

    def attempt(self, tup: Tuple, execute: Any) -> None:
        """Execute one tuple; an exception fails it."""
        assert isinstance(tup, HeldTuple)
        self._pending[id(tup)] = tup
        self._current = tup
        self._unfit.clear()
        self._first_value, self._first_part = len(self._emitted.values), len(self._parts)
        try:
            result = execute(tup)
        except EmitError as error:
            self._fail(tup, error)
        except OperatorError:
            raise
        except failures() as error:
            # Even if it was acked before: code that acks a tuple and then raises has not finished it.
            self._fail(tup, error)
        else:
            if result is not None:
                self._refuse(
                    f"bolt {self._component!r}: execute() returned {type(result).__name__}, expected None. "
                    "Returned or yielded values are lost; emit them, as in collector.emit([word])"
                )
            if self._unfit:
                # The bolt has caught the error, but what it emitted is lost.
                self._fail(tup, self._unfit[0])
        self._current = None
        self._first_value = self._first_part = 0
        self._raise_mistake()

    def begin_batch(self, given: Given) -> None:
        """Begin an input batch."""
        self._batch = given

    def end_batch(self) -> None:
        """End the current input batch: all its tuples were executed."""
        given, self._batch = self._batch, None
        if given is None or given.anchors is None:
            return
        if self._of_source:
            self._ledger.consume_records(given.anchors, given.message_ids, given.failed)
        else:
            self._ledger.consume(given.anchors)

    def clean_up(self, bolt: Bolt | BasicBolt) -> None:
        """Clean up at the end of the input: tuples neither acked nor failed after the bolt's `cleanup` fail."""
        reason = NOT_ACKED
        try:
            bolt.cleanup()
        except failures() as error:
            if isinstance(error, OperatorError) and not isinstance(error, EmitError):
                raise
            if isinstance(bolt, BasicBolt):
                msg = (
                    f"bolt {self._component!r}: cleanup() raised {reason_of(error)}. Its tuples are already "
                    "acked, so the batch fails as a whole. Fix it and start the query again, which reads the "
                    "batch again"
                )
                raise OperatorError(msg) from error
            reason = reason_of(error)
        self._raise_mistake()
        for tup in list(self._pending.values()):
            self.fail(tup, reason)

    def log_untracked_failures(self) -> None:
        """Log the failures of tuples that belong to no tracked record."""
        if self._untracked_failures:
            log.warning(
                "bolt %r, batch %d: %d untracked tuples failed, so no record comes back for them; the first: %s",
                self._component,
                self._ledger.txid,
                self._untracked_failures,
                self._first_untold,
            )

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the tuples emitted since the last call; values that do not fit the fields fail their records."""
        self._pack()
        parts, self._parts = self._parts[::-1], []
        while parts:
            part = parts.pop()
            if not self._taken:
                continue
            if not self._tracked:
                yield part.rows
                continue
            trees = part.trees
            made = Anchors(
                np.array([root for tree in trees for root in tree], dtype=np.int64),
                np.array([edge for tree in trees for edge in tree.values()], dtype=np.int64),
                np.cumsum([0, *map(len, trees)]),
            )
            self._ledger.produce(made)
            yield pa.RecordBatch.from_arrays(
                [*part.rows.columns, made.column()], names=[*self._schema.names, ANCHORS]
            )

    def _pack(self) -> None:
        """Put the emitted values into Arrow batches: those of the current tuple, which may still fail, into one."""
        emitted, self._emitted = self._emitted, _Emitted()
        first, self._first_value = self._first_value, 0
        if first:
            self._pack_rows(emitted.values[:first], emitted.trees[:first])
            self._first_part = len(self._parts)
        if len(emitted.values) > first:
            self._pack_rows(emitted.values[first:], emitted.trees[first:])

    def _pack_rows(self, values: list[tuple[Any, ...]], trees: list[dict[int, int]]) -> None:
        schema = self._schema
        try:
            rows = batch_of(values, schema)
        except Exception:
            fitting: list[int] = []
            for at, value in enumerate(values):
                try:
                    batch_of([value], schema)
                except Exception as error:
                    self._fail_roots(trees[at], named(error, self._component))
                else:
                    fitting.append(at)
            rows = batch_of([values[at] for at in fitting], schema)
            trees = [trees[at] for at in fitting]
        if self._taken:
            self._parts.append(_Part(rows, trees))

    def _fail(self, tup: HeldTuple, reason: object) -> None:
        # The text first: a reason that cannot be converted must not leave the tuple acked.
        text = named(reason, self._component)
        self.ack(tup)
        if self._tracked and self._of_source and tup.given is self._batch:
            tup.given.failed.setdefault(tup.row, text)
        else:
            self._fail_roots(tup.given.anchors_at(tup.row)[0].tolist(), text)

    def _fail_roots(self, roots: Collection[int], text: str) -> None:
        if roots:
            self._ledger.fail(roots, text)
            return
        self._first_untold = self._first_untold or text
        self._untracked_failures += 1

    def _require_tuple(self, given: object, what: str) -> None:
        if not isinstance(given, HeldTuple):
            self._refuse(
                f"bolt {self._component!r}: {what} is {type(given).__name__}, not a tuple. Pass the tuple that "
                "execute() received"
            )

    def _refuse_values(self, values: object, parents: Iterable[object]) -> NoReturn:
        """Fail the anchors of a tuple that cannot be emitted; the current tuple fails by the error, or after it."""
        names = ", ".join(self._schema.names)
        what = (
            f"its fields are {names}. Emit a list with one value for each field"
            if names
            else ("it declares no fields. Name them in `fields`, as in fields = 'word string'")
        )
        error = EmitError(f"bolt {self._component!r} emitted {short_repr(values)}; {what}")
        for parent in parents:
            self._require_tuple(parent, "an anchor")
            assert isinstance(parent, HeldTuple)
            if parent is not self._current:
                self._fail(parent, error)
        self._unfit.append(error)
        raise error

    def _refuse(self, msg: str) -> NoReturn:
        # Kept in case the bolt catches it: it is an error of the bolt, not of a tuple.
        self._mistake = OperatorError(msg)
        raise self._mistake

    def _raise_mistake(self) -> None:
        if self._mistake is not None:
            raise self._mistake


def named(reason: object, component: str) -> str:
    """Return a reason with the bolt's name, at most 256 characters."""
    suffix = f" (bolt {component[:_NAME_LENGTH]})"
    return reason_of(reason)[: REASON_LENGTH - len(suffix)] + suffix
