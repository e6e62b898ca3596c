"""The collector of one bolt task: its emits, acks and fails, and the trees of its tuples."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.steps.columns import Columns, batch_of
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.bolt.storm.api import BasicBolt, Bolt, Tuple
from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of, child_edges, salt_of
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.spout.reader.rows import ANCHORS, MESSAGE_ID
from kinesis_trident.tracker.reasons import REASON_LENGTH

__all__ = ["NOT_ACKED", "Collector", "Given", "HeldTuple", "named"]

NOT_ACKED = "NOT_ACKED"
_NAME_LENGTH = 100

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
    """Emitted tuples that are not yet passed on: their values, and for each its {root: edge}."""

    values: list[tuple[Any, ...]] = field(default_factory=list)
    trees: list[dict[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)


class Collector:
    """The collector that bolts get, and the state of their tuples.

    `schema`: of the tuples that the bolt emits; None if no component takes them. If it is not `tracked`, acks and
    fails have no effect. `of_source`: its tuples are the source's rows.
    """

    def __init__(
        self,
        component: str,
        schema: pa.Schema | None,
        ledger: OperatorLedger,
        *,
        tracked: bool,
        of_source: bool,
    ) -> None:
        self._component = component
        self._schema = schema
        self._ledger = ledger
        self._tracked = tracked
        self._of_source = of_source
        self._salt = salt_of(component)
        self._batch: Given | None = None
        self._pending: dict[int, HeldTuple] = {}
        self._mistake: OperatorError | None = None
        self._untracked_failures = 0
        self._first_untold = ""
        self.emitted = _Emitted()

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple."""
        if self._schema is None:
            return
        given: object = values
        if isinstance(given, Tuple):
            msg = (
                f"bolt {self._component!r} emitted a tuple in place of values. Give the values first, then the "
                "anchors, as in emit([word], tup); to pass a tuple on, call emit(list(tup), tup)"
            )
            self._refuse(msg)
        in_order = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
        if not in_order or len(values) != len(self._schema):
            msg = (
                f"bolt {self._component!r} emitted {values!r}; its fields are {', '.join(self._schema.names)}. "
                "Emit a list with one value for each field"
            )
            self._refuse(msg)
        several: object = anchors
        tree: dict[int, int] = {}
        for parent in (
            several if isinstance(several, Iterable) and not isinstance(several, Tuple) else (several,)
        ):
            self._require_tuple(parent, "an anchor")
            assert isinstance(parent, HeldTuple)
            if not self._tracked:
                continue
            roots, edges = parent.given.anchors_at(parent.row)
            numbers = np.full(len(roots), parent.children)
            parent.children += 1
            children = child_edges(edges, self._salt, numbers)
            for root, edge in zip(roots.tolist(), children.tolist(), strict=True):
                tree[root] = tree.get(root, 0) ^ edge
        self.emitted.values.append(tuple(values))
        self.emitted.trees.append(tree)

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
        try:
            result = execute(tup)
        except OperatorError:
            raise
        except Exception as error:
            # Even if it was acked before: code that acks a tuple and then raises has not finished it.
            self._fail(tup, error)
        else:
            if result is not None:
                self._refuse(
                    f"bolt {self._component!r}: execute() returned {type(result).__name__}, expected None. "
                    "Returned or yielded values are lost; emit them, as in collector.emit([word])"
                )
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
        except OperatorError:
            raise
        except Exception as error:
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
        emitted, self.emitted = self.emitted, _Emitted()
        schema = self._schema
        if not len(emitted) or schema is None:
            return
        trees = emitted.trees
        try:
            rows = batch_of(emitted.values, schema)
        except Exception:
            fitting: list[int] = []
            for at, value in enumerate(emitted.values):
                try:
                    batch_of([value], schema)
                except Exception as error:
                    self._fail_roots(trees[at], named(error, self._component))
                else:
                    fitting.append(at)
            rows = batch_of([emitted.values[at] for at in fitting], schema)
            trees = [trees[at] for at in fitting]
        if not self._tracked:
            yield rows
            return
        made = Anchors(
            np.array([root for tree in trees for root in tree], dtype=np.int64),
            np.array([edge for tree in trees for edge in tree.values()], dtype=np.int64),
            np.cumsum([0, *map(len, trees)]),
        )
        self._ledger.produce(made)
        yield pa.RecordBatch.from_arrays([*rows.columns, made.column()], names=[*schema.names, ANCHORS])

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
