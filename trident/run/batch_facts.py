"""The facts of a batch that an attempt needs, whichever half of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinesis_trident.bolt.tracking.batch_run import BatchRun
from kinesis_trident.trident.build.nodes import UpdateNode
from kinesis_trident.trident.run.state_metrics import UpdateMetrics
from kinesis_trident.trident.stores.ownership import Owner


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts of a batch that an attempt needs: `run` is None outside of transactions.

    `one_task`: its few records are read in one task, so that nothing need be moved.
    """

    run: BatchRun | None
    conf: Mapping[str, Any]
    partitions: int
    owners: Mapping[UpdateNode, Owner] = field(default_factory=dict)
    one_task: bool = False
    metrics: UpdateMetrics = field(default_factory=UpdateMetrics)

    @property
    def txid(self) -> int | None:
        """The batch's number."""
        return None if self.run is None else self.run.txid
