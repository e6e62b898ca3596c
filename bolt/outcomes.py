"""The records of one batch that a sink refused, named by its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial

from pyspark.sql import Column, DataFrame, functions as F

from kinesis_trident.bolt.errors import NotOfThisBatchError
from kinesis_trident.bolt.mark import Batch
from kinesis_trident.tracker.failure import Failure, join


class Outcomes:
    """The rows that `write` could not store: they come back in a later batch, with the reason.

    Attributes:
        batch: the attempt at the batch, as sinks know it.
    """

    def __init__(
        self,
        epoch: int = 0,
        application: str = "",
        txid: int = 0,
        *,
        home: str = "",
        merged: Iterable[str] = (),
    ) -> None:
        self.batch = Batch(application, home, frozenset(merged), epoch, txid)
        self._failed: dict[str, Failure] = {}

    @property
    def epoch(self) -> int:
        """The epoch of the run that read the rows; each start of the application has a higher one.

        A driver that was paused and resumes after a takeover writes under its own epoch, so a sink that has it in its
        keys or paths can recognise late writes.
        """
        return self.batch.epoch

    @property
    def application(self) -> str:
        """The option `applicationName`."""
        return self.batch.application

    @property
    def txid(self) -> int:
        """The txid of the batch."""
        return self.batch.txid

    def fail(
        self,
        rows: DataFrame | Iterable[str],
        reason: str | Column,
        *,
        retry: bool = True,
        after: str | timedelta | None = None,
    ) -> None:
        """Send records back.

        Args:
            rows: a DataFrame with the column `messageId` (any number of rows of this batch), or message ids.
            reason: a text, or a column of `rows` with one.
            retry: False where no further delivery can help: they go where `onExhausted` says.
            after: they do not come again before a while, such as `10m`, has passed; the policy's delay may be longer.

        Raises:
            NotOfThisBatchError: `rows` has no column `messageId`, or a row has a null there.
            DelayError: `after` is no delay, or is given with `retry=False`.
        """
        said = partial(Failure.said, retry=retry, after=after)
        # A mistake is found also where no row fails.
        refused = said("refused by the sink")
        if not isinstance(rows, DataFrame):
            if isinstance(reason, Column):
                msg = "outcomes.fail needs a DataFrame of rows if the reason is a column. Give the reason as a text"
                raise NotOfThisBatchError(msg)
            failure = said(reason)
            for message_id in rows:
                self._fail(message_id, failure)
            return
        if "messageId" not in rows.columns:
            msg = (
                "outcomes.fail needs the column 'messageId' to identify records; the rows have "
                f"{', '.join(rows.columns)}. Keep the column in all DataFrames derived from the batch"
            )
            raise NotOfThisBatchError(msg)
        why = reason if isinstance(reason, Column) else F.lit(reason)
        for row in rows.select("messageId", why.cast("string").alias("reason")).distinct().collect():
            if row["messageId"] is None:
                msg = (
                    "outcomes.fail got a row whose messageId is null, as outer joins produce them. Filter such "
                    "rows out"
                )
                raise NotOfThisBatchError(msg)
            self._fail(row["messageId"], said(row["reason"]) if row["reason"] else refused)

    def _fail(self, message_id: str, failure: Failure) -> None:
        known = self._failed.get(message_id)
        self._failed[message_id] = failure if known is None else join(known, failure)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Send back the records, by `messageId`, that a table does not take."""
        for message_id, reason in reasons.items():
            self._fail(message_id, Failure.said(reason))

    def __len__(self) -> int:
        return len(self._failed)

    @property
    def failures(self) -> Mapping[str, Failure]:
        """The records failed so far, by message id."""
        return self._failed
