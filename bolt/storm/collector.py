"""The collector of one bolt task: its emits, acks and fails, and the trees of its tuples."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from reprlib import repr as short_repr
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from kinesis_trident.bolt.errors import EmitError, OperatorError
from kinesis_trident.bolt.steps.functions import failures, reason_of
from kinesis_trident.bolt.storm.api import BasicBolt, Bolt, Tuple
from kinesis_trident.bolt.storm.output import Output, Parents
from kinesis_trident.bolt.storm.received import Given, HeldTuple
from kinesis_trident.bolt.tracking.anchors import salt_of
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.spout.reader.rows import ANCHORS
from kinesis_trident.tracker.reasons import REASON_LENGTH

__all__ = ["NOT_ACKED", "Collector", "named"]

NOT_ACKED = "NOT_ACKED"
_NAME_LENGTH = 100

log = logging.getLogger(__name__)


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
        self._output = Output(
            schema, salt_of(component) if tracked else None, self._refuse_unfit, taken=taken
        )
        self._batch: Given | None = None
        self._pending: dict[int, HeldTuple] = {}
        self._mistake: OperatorError | None = None
        self._current: HeldTuple | None = None
        self._unfit: list[EmitError] = []
        self._untracked_failures = 0
        self._first_untold = ""

    def emit(self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = ()) -> None:
        """Emit a tuple."""
        output = self._output
        given: object = values
        if isinstance(given, Tuple):
            self._refuse(
                f"bolt {self._component!r} emitted a tuple in place of values. Give the values first, then the "
                "anchors, as in emit([word], tup); to pass a tuple on, call emit(list(tup), tup)"
            )
        parents = anchors if type(anchors) is HeldTuple else self._parents(anchors)
        if type(values) is not list or len(values) != output.width:
            self._check_values(values, parents)
        output.add(values, parents)

    @property
    def is_full(self) -> bool:
        """True if enough is emitted for a `flush`."""
        return self._output.is_full

    def drop_emitted(self) -> None:
        """Drop what the current tuple has emitted."""
        self._output.drop()

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
        self._output.begin_tuple()
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
        self._output.end_tuple()
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
        for rows, anchors in self._output.flush():
            if anchors is None:
                yield rows
                continue
            self._ledger.produce(anchors)
            yield pa.RecordBatch.from_arrays(
                [*rows.columns, anchors.column()], names=[*rows.schema.names, ANCHORS]
            )

    def _fail(self, tup: HeldTuple, reason: object) -> None:
        # The text first: a reason that cannot be converted must not leave the tuple acked.
        text = named(reason, self._component)
        self.ack(tup)
        if self._tracked and self._of_source and tup.given is self._batch:
            tup.given.failed.setdefault(tup.row, text)
        else:
            self._fail_roots(tup.given.roots_at(tup.row), text)

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

    def _parents(self, anchors: object) -> tuple[HeldTuple, ...]:
        several = isinstance(anchors, Iterable) and not isinstance(anchors, Tuple)
        parents = tuple(anchors) if several else (anchors,)  # type: ignore[arg-type]
        for parent in parents:
            self._require_tuple(parent, "an anchor")
        return parents  # type: ignore[return-value]

    def _check_values(self, values: object, parents: Parents) -> None:
        """Check that there is a value for each field; else the anchors fail, and the current tuple by the error."""
        in_order = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str | bytes)
        if in_order and len(values) == len(self._schema):  # type: ignore[arg-type]
            return
        names = ", ".join(self._schema.names)
        what = (
            f"its fields are {names}. Emit a list with one value for each field"
            if names
            else ("it declares no fields. Name them in `fields`, as in fields = 'word string'")
        )
        error = EmitError(f"bolt {self._component!r} emitted {short_repr(values)}; {what}")
        for parent in (parents,) if isinstance(parents, HeldTuple) else parents:
            if parent is not self._current:
                self._fail(parent, error)
        self._unfit.append(error)
        raise error

    def _refuse_unfit(self, parents: Parents, error: Exception) -> None:
        """Fail the records of a tuple whose values do not fit the fields."""
        several = (parents,) if isinstance(parents, HeldTuple) else parents
        roots = [root for parent in several for root in parent.given.roots_at(parent.row)]
        self._fail_roots(dict.fromkeys(roots), named(error, self._component))

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
