"""The task that updates a part of a state, as its stores see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinesis_trident.bolt.tracking.place import is_first_try
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores.ownership import OWNER, Owner


@dataclass(frozen=True, slots=True)
class StateTask:
    """A task of an attempt at a batch.

    Attributes:
        attempt: rises with each attempt, see `kinesis_trident.trident.ATTEMPT`; None: not known, so there is no fence.
        owner: of the state; None: not known, so nothing is checked.
        partition: the index of the task's partition.
        partitions: their number; 0: not known, so replays are not checked.
        is_first: nobody has updated the state with this batch before: no attempt, and no try of this task by Spark.
    """

    attempt: int | None = None
    owner: Owner | None = None
    partition: int = 0
    partitions: int = 0
    is_first: bool = False

    @classmethod
    def of(cls, conf: Mapping[str, Any], partition: int = 0, partitions: int = 0) -> StateTask:
        """Return the task that makes a state with this `conf`."""
        owner: Owner | None = conf.get(OWNER)
        is_first = owner is not None and owner.is_first and is_first_try()
        return cls(conf.get(ATTEMPT), owner, partition, partitions, is_first)
