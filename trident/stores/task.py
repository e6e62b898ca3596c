"""The task that updates a part of a state, as its stores see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinesis_trident.bolt.tracking.place import is_first_try
from kinesis_trident.trident.maps.task_keys import TaskKeys
from kinesis_trident.trident.maps.window_shape import Shape
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores.ownership import Owner, StatePlace

TASK = "trident.task"
"""The entry of `conf` with the `StateTask`, in a topology."""


@dataclass(frozen=True, slots=True)
class StateTask:
    """A task of an attempt at a batch.

    Attributes:
        attempt: rises with each attempt, see `kinesis_trident.trident.ATTEMPT`; None: not known, so there is no fence.
        owner: of the state; None: not known, so nothing is checked.
        partition: the index of the task's partition.
        partitions: their number; 0: not known, so replays are not checked.
        shape: of the windows that the state keeps, or of its tasks' keys; None: of neither.
        is_first: nobody has updated the state with this batch before: no attempt, and no try of this task by Spark.
        place: the owner's keys in the store; None: not known, so nothing is checked.
        lasting: the store keeps the fence through a batch; a cache may forget it.
    """

    attempt: int | None = None
    owner: Owner | None = None
    partition: int = 0
    partitions: int = 0
    is_first: bool = False
    shape: Shape | TaskKeys | None = None
    place: StatePlace | None = None
    lasting: bool = True

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> StateTask:
        """Return the task of a `conf`; of that of your own code only the attempt is known."""
        task: StateTask = conf.get(TASK) or cls(conf.get(ATTEMPT))
        return task

    def here(self, partition: int, partitions: int) -> StateTask:
        """Return this task as it runs in a partition: Spark may have run it there before."""
        is_first = self.is_first and is_first_try()
        return replace(self, partition=partition, partitions=partitions, is_first=is_first)
