"""A place in a shard where somebody can read on: it goes from a look to a reader, and from turn to turn."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.positions import Position


@dataclass(frozen=True, slots=True)
class ShardCursor:
    """A position of a shard, and what is there for whoever reads on from it.

    An iterator yields what a new one at the same position would, so it does not matter who has read last.

    Attributes:
        position: where to read on.
        iterator: the iterator there; None to ask for one.
        page: the answer to it, if it is there already: whoever has asked for it has counted its call and its bytes.
        seconds: the part of the turn's `maxFetchTime` in which the answer was read ahead; 0 for a look.
    """

    position: Position
    iterator: str | None = None
    page: Page | None = None
    seconds: float = 0.0
