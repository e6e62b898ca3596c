"""Lets only the newest run of an application write: every write carries a check of the epoch.

The epoch is the znode version of `epoch`: made with version 0 (never started), raised by each start, so the first
run has epoch 1 and any multi can check it. A run that is replaced cannot write anything any more, however late its
requests arrive. A lock could not guarantee this: Spark leaves a stopped query's reader alive, sessions included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kinesis_trident.checkpoint.errors import CheckpointError, FencedError, StateMissingError
from kinesis_trident.checkpoint.model.codec import decode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import EpochNode
from kinesis_trident.checkpoint.zookeeper.operations import Check, Op, Refused
from kinesis_trident.checkpoint.zookeeper.session import Session

__all__ = ["RACES", "Fence", "too_many_races"]

RACES = 20
"""Optimistic retries per operation; each lost race means that another process made progress."""


class Fence:
    """Writes of one application's state, each under the epoch of its run."""

    def __init__(self, session: Session, layout: Layout) -> None:
        self._session = session
        self._layout = layout

    def commit(self, ops: Sequence[Op], epoch: int) -> bool:
        """Do `ops` in one multi if `epoch` is still the newest; without any it checks this, with the leader.

        Returns:
            As `Session.commit`.

        Raises:
            FencedError, StateMissingError: it is not.
            Refused: one of `ops` was not possible.
        """
        return self.begin(ops, epoch)()

    def begin(self, ops: Sequence[Op], epoch: int) -> Callable[[], bool]:
        """Send what `commit` does; return what waits for the answer, as `Session.begin` does."""
        finish = self._session.begin([Check(self._layout.epoch, epoch), *ops])

        def finish_fenced() -> bool:
            try:
                return finish()
            except Refused as refused:
                if refused.op.path != self._layout.epoch:
                    raise
            raise self._not_newest(epoch)

        return finish_fenced

    def _not_newest(self, epoch: int) -> FencedError | StateMissingError:
        path = self._layout.epoch
        found = self._session.read([path])[0]
        if found is None or found.stat.version < epoch:
            held = "is gone" if found is None else f"is {found.stat.version}"
            return StateMissingError(
                f"{path} {held}, but this run has epoch {epoch}: ZooKeeper's data was lost or replaced by an "
                "older state. Restore it, or start the query again; onCheckpointMismatch decides what happens "
                "then"
            )
        by = decode(path, found.data, EpochNode)
        try:
            since = datetime.fromtimestamp(by.since / 1000, UTC).isoformat(timespec="seconds")
        except (ValueError, OverflowError, OSError):
            since = f"{by.since} ms"
        return FencedError(
            f"a newer run of application {self._layout.application!r} on {self._layout.what} has taken over: epoch "
            f"{found.stat.version}, host {by.host}, pid {by.pid}, since {since}; this run has epoch {epoch} and "
            f"stops ({path}). If both are meant to run (two queries, or two load() of one query), give each its "
            "own applicationName; if this is the older one, do nothing",
            epoch,
            found.stat.version,
        )


def too_many_races(path: str) -> CheckpointError:
    """Return the error for an operation that lost the race too often."""
    return CheckpointError(
        f"{path} was changed by other processes {RACES} times while it was written. Try again"
    )
