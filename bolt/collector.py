"""What a bolt emits, acks and fails in one task, and the account of the trees of its tuples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bolt.anchors import Anchors, anchors_of, child_edges, salt_of
from bolt.columns import batch_of
from bolt.errors import OperatorError
from bolt.functions import reason_of
from bolt.record import Columns
from bolt.reports import Ledger
from bolt.storm import BasicBolt, Bolt, Tuple
from spout.rows import ANCHORS, MESSAGE_ID

__all__ = ["NOT_ACKED", "Collector", "Given", "HeldTuple", "named"]

NOT_ACKED = "NOT_ACKED"


class Given:
    """A batch that came in."""

    __slots__ = ("anchors", "failed", "message_ids")

    def __init__(self, batch: pa.RecordBatch, tracked: bool) -> None:
        self.anchors = anchors_of(batch) if tracked else None
        self.message_ids = batch.column(MESSAGE_ID) if MESSAGE_ID in batch.schema.names else None
        self.failed: dict[int, str] = {}

    def anchors_at(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The roots and the edges of a row."""
        if self.anchors is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        offsets = self.anchors.offsets
        span = slice(row, row + 1) if offsets is None else slice(offsets[row], offsets[row + 1])
        return self.anchors.roots[span], self.anchors.edges[span]


class HeldTuple(Tuple):
    """A tuple with its place in the trees. `children`: how many tuples were anchored to it so far."""

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
        """Its row in the batch."""
        return self._row


@dataclass
class _Emitted:
    """Tuples that were emitted and not yet handed on: their values, and for each its {root: edge}."""

    values: list[tuple[Any, ...]] = field(default_factory=list)
    trees: list[dict[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)


class Collector:
    """The collector that bolts are given, and the account that it keeps.

    `schema`: of what the bolt emits; None where nobody takes that. Where it is not `tracked`, acks and fails have no
    effect. `of_source`: its tuples are the source's rows.
    """

    def __init__(
        self, component: str, schema: pa.Schema | None, ledger: Ledger, *, tracked: bool, of_source: bool
    ) -> None:
        self._component = component
        self._schema = schema
        self._ledger = ledger
        self._tracked = tracked
        self._of_source = of_source
        self._salt = salt_of(component)
        self._batch: Given | None = None
        self._pending: dict[int, HeldTuple] = {}
        self.emitted = _Emitted()

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple."""
        if self._schema is None:
            return
        given: object = values
        if isinstance(given, Tuple):
            msg = (
                f"bolt {self._component!r} emitted a tuple as the values: give the values first, then the "
                "anchors, as in emit([word], tup); to pass a tuple on, emit(list(tup), tup)"
            )
            raise OperatorError(msg)
        if isinstance(values, str | bytes) or len(values) != len(self._schema):
            msg = (
                f"bolt {self._component!r} emitted {values!r}; its fields are "
                f"{', '.join(self._schema.names)}: give a list with one value for each"
            )
            raise OperatorError(msg)
        tree: dict[int, int] = {}
        for parent in (anchors,) if isinstance(anchors, Tuple) else anchors:
            self._require_tuple(parent, "an anchor")
            assert isinstance(parent, HeldTuple)
            roots, edges = parent.given.anchors_at(parent.row)
            numbers = np.full(len(roots), parent.children)
            parent.children += 1
            children = child_edges(edges, self._salt, numbers)
            for root, edge in zip(roots.tolist(), children.tolist(), strict=True):
                tree[root] = tree.get(root, 0) ^ edge
        self.emitted.values.append(tuple(values))
        self.emitted.trees.append(tree)

    def ack(self, tup: Tuple) -> None:
        """The tuple is processed."""
        self._require_tuple(tup, "what it acked")
        assert isinstance(tup, HeldTuple)
        tup.answered = True
        self._pending.pop(id(tup), None)

    def fail(self, tup: Tuple, reason: str = "FAILED") -> None:
        """The tuple failed."""
        self._require_tuple(tup, "what it failed")
        assert isinstance(tup, HeldTuple)
        if tup.answered:
            return
        self.ack(tup)
        if not self._tracked:
            return
        reason = named(reason, self._component)
        if self._of_source and tup.given is self._batch:
            tup.given.failed[tup.row] = reason
        else:
            self._ledger.fail(tup.given.anchors_at(tup.row)[0].tolist(), reason)

    def reset_timeout(self, tup: Tuple) -> None:
        """Nothing: a tuple has until its task ends."""

    def attempt(self, tup: Tuple, execute: Any) -> None:
        """Execute one tuple; an exception fails it."""
        assert isinstance(tup, HeldTuple)
        self._pending[id(tup)] = tup
        try:
            execute(tup)
        except OperatorError:
            raise
        except Exception as error:
            self.fail(tup, reason_of(error))

    def begin_batch(self, given: Given) -> None:
        """A batch comes."""
        self._batch = given

    def end_batch(self) -> None:
        """All tuples of the batch at hand were executed: take it into the account."""
        given, self._batch = self._batch, None
        if given is None or given.anchors is None:
            return
        if self._of_source:
            self._ledger.consume_records(given.anchors, given.message_ids, given.failed)
        else:
            self._ledger.consume(given.anchors)

    def clean_up(self, bolt: Bolt | BasicBolt) -> None:
        """The input is exhausted: what is neither acked nor failed after the bolt's `cleanup` fails."""
        reason = NOT_ACKED
        try:
            bolt.cleanup()
        except OperatorError:
            raise
        except Exception as error:
            if isinstance(bolt, BasicBolt):
                msg = (
                    f"bolt {self._component!r}: cleanup() raised {reason_of(error)}. Its tuples are acked by "
                    "then, so the batch fails as a whole, and is read again when the query is started again"
                )
                raise OperatorError(msg) from error
            reason = reason_of(error)
        for tup in list(self._pending.values()):
            self.fail(tup, reason)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What was emitted since the last time; a tuple whose values do not fit the fields fails its records."""
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
                    self._unfit(trees[at], reason_of(error))
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

    def _require_tuple(self, given: object, what: str) -> None:
        if not isinstance(given, HeldTuple):
            msg = (
                f"bolt {self._component!r}: {what} is {type(given).__name__}, expected a tuple that execute "
                "was given"
            )
            raise OperatorError(msg)

    def _unfit(self, tree: dict[int, int], reason: str) -> None:
        if self._tracked:
            self._ledger.fail(tree, named(reason, self._component))


def named(reason: str, component: str) -> str:
    """A reason with the bolt's name, at most 256 characters."""
    suffix = f" (bolt {component})"
    return reason[: 256 - len(suffix)] + suffix
