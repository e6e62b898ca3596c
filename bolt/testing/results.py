"""The result of a topology that ran in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class FailedTuple(NamedTuple):
    """A failed delivery of a spout's tuple.

    `values` is the tuple as it was given. `attempt` counts its deliveries, from 1. `due`: when it is due again, in
    epoch seconds; None if it is exhausted.
    """

    spout: str
    values: Any
    attempt: int
    reason: str
    due: float | None


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """The result of `run_topology`.

    Attributes:
        emitted: the tuples that each component emitted, by its name: rows, which are tuples of the values with names.
            Those of a named stream are under (component, stream).
            A spout's are the given tuples, again for each delivery. An operation of Trident is named as in messages,
            `each(Split)`, with `#2` for the second of its name; its tuples are without the columns of the source.
        acked: the given tuples that are done, by the name of their spout, in the order in which they were.
        held: those that bolts still hold at the end, by the name of their spout.
        failed: all failed deliveries.
        exhausted: those that were the last of their tuple: its retries are used up.
        states: what the states hold that the topology updates, by their names: the value of each key, a tuple of the
            group's values. The key of an aggregation of all tuples is empty.
    """

    emitted: Mapping[str | tuple[str, str], list[Any]] = field(default_factory=dict)
    acked: Mapping[str, list[Any]] = field(default_factory=dict)
    held: Mapping[str, list[Any]] = field(default_factory=dict)
    failed: list[FailedTuple] = field(default_factory=list)
    states: Mapping[str, dict[tuple[Any, ...], Any]] = field(default_factory=dict)

    @property
    def exhausted(self) -> list[FailedTuple]:
        """The failed deliveries after which a tuple is not delivered again."""
        return [one for one in self.failed if one.due is None]
