"""The epoch and the txid, which outlast a run of a topology in this process, as ZooKeeper keeps them for a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary


@dataclass
class Life:
    """The epoch of the current run and the txid of its newest batch, which rise; what was applied to each state."""

    epoch: int = 0
    txid: int = 0
    applied: dict[str, int] = field(default_factory=dict)


_LIVES: WeakKeyDictionary[object, dict[str, Life]] = WeakKeyDictionary()


def life_of(topology: object, spout: str) -> Life:
    """Begin a run of a topology: its batches go on from those of the run before, as its states do."""
    life = _LIVES.setdefault(topology, {}).setdefault(spout, Life())
    life.epoch += 1
    return life
