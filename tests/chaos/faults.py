"""What a fault is: it begins, lasts until it is over, and is healed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.scene import Scene

__all__ = ["Fault"]


class Fault(ABC):
    """One fault of a schedule; an object of its own for each strike.

    `seconds`: how long it lasts. `explains`: a regular expression for what a job says that ends because of it; empty
    if no job may end.
    """

    seconds = 0.0
    explains = ""

    def __init__(self) -> None:
        self._began = 0.0

    def strike(self, scene: Scene) -> None:
        """Begin."""
        self._began = time.monotonic()
        self.start(scene)

    @abstractmethod
    def start(self, scene: Scene) -> None:
        """Do what is wrong."""

    def is_over(self, scene: Scene) -> bool:
        """Tell whether it is time to heal."""
        return time.monotonic() - self._began >= self.seconds

    def heal(self, scene: Scene) -> None:  # noqa: B027
        """Undo it; most of what was killed needs nothing."""
