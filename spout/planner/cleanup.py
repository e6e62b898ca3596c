"""Removes the remains of settled batches from ZooKeeper and the spool, and keeps copies of the shards' nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.errors import SpoolError
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.state import SourceState
from kinesis_trident.tracker.records import Run

log = logging.getLogger(__name__)

_EVERY = 20
"""The number of batches between two purges of nodes that settling did not remove."""

_DAY_MS = 24 * 3_600_000


class Purger:
    """Purges in the background; nothing depends on it. It watches the state, which knows what is still needed.

    `spool`: of the source. `tidy`: cleans up the place of dead letters. `executor`: works, and is shut down at the end.
    """

    def __init__(
        self,
        store: SourceStore,
        state: SourceState,
        spool: RetrySpool | None,
        tidy: Callable[[], None],
        executor: Executor | None = None,
    ) -> None:
        self._store = store
        self._state = state
        self._spool = spool
        self._tidy = tidy
        self._purged = -_EVERY
        self._untidy_upto = 0
        self._copied = 0
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="purge")

    def purge(self) -> None:
        """Begin to remove settled batches; settling removes most of them itself, so the rest is not urgent."""
        shards = self._state.shards
        if self._untidy_upto > self._purged or shards.settled >= self._purged + _EVERY:
            self._purged = shards.settled
            left = {shard: (*at.waiting, *at.dead) for shard, at in shards.states.items()}
            self._executor.submit(self._remove, self._purged, left, shards.turns_in_use)

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """Note that batches were settled without removing all that they left."""
        if after.settled > before.settled and not (isinstance(event, BatchSettled) and event.leftover):
            self._untidy_upto = after.settled

    def keep_copy(self, now: int) -> None:
        """Keep a copy of the shards' nodes for `checkpoints APP import`, if the last one is a day old."""
        if self._state.shards.settled and now - self._copied >= _DAY_MS:
            self._copied = now
            self._executor.submit(self._keep, self._state.copy(), self._state.epoch)
            self._executor.submit(self._tidy)

    def close(self) -> None:
        """Wait for the purge in progress."""
        self._executor.shutdown(wait=True)

    def _keep(self, copy: BackupNode, epoch: int) -> None:
        try:
            self._store.changes.keep(copy, epoch)
        except CheckpointError as error:
            log.warning("cannot keep a backup of the checkpoints, trying again tomorrow: %s", error)

    def _remove(self, settled: int, left: Mapping[str, Sequence[Run]], keep: frozenset[int]) -> None:
        try:
            self._store.leftovers.purge(settled, self._state.epoch, keep)
            if self._spool is not None:
                self._spool.clean(settled, left)
        except (CheckpointError, SpoolError) as error:
            # A later purge removes what this one did not.
            log.warning("cannot purge settled batches now, trying again later: %s", error)
