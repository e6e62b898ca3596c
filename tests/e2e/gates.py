"""Gates: places at which the processes of a job stop, and go on, or are killed there, as a test decides.

`KT_GATES` names a folder. The test writes there which point is armed; whoever comes to that point with a batch above
the one named leaves a marker and waits on a FIFO beside it. A gate stops so many processes as it is told, then no more.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PINNING", "Gates", "Stop", "install", "stop_at"]

PINNING = "while it is read"
"""A shard's part of a batch has been read, and is about to be pinned."""

FIRST_SHARD = "shardId-000000000000"


@dataclass(frozen=True)
class Stop:
    """A process that waits at a gate, and its batch."""

    pid: int
    txid: int


class Gates:
    """The test's side: all that can come to a point has a gate of its own there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._armed = 0
        folder.mkdir()

    def arm(self, point: str, after: Mapping[str, int], visits: int = 1) -> None:
        """Stop at `point` who comes with a batch above `after`, by gate, so many times; any other point is open."""
        self._armed += 1
        here = self.folder / str(self._armed)
        here.mkdir()
        for gate in after:
            for visit in range(visits):
                os.mkfifo(here / f"{gate}.{visit}.fifo")
        part = self.folder / "armed.part"
        said = {"number": self._armed, "point": point, "after": after, "visits": visits}
        part.write_text(json.dumps(said))
        part.replace(self.folder / "armed.json")

    def stopped(self, gate: str, visit: int = 0) -> Stop | None:
        """Return who waits, or has waited, at a gate."""
        marker = self.folder / str(self._armed) / f"{gate}.{visit}"
        return Stop(**json.loads(marker.read_text())) if marker.exists() else None

    def open(self, gate: str, visit: int = 0) -> None:
        """Let who waits there go on."""
        with (self.folder / str(self._armed) / f"{gate}.{visit}.fifo").open("wb"):
            pass


def stop_at(point: str, gate: str, txid: int) -> None:
    """Wait here if the test wants it; the job's side."""
    folder = Path(os.environ["KT_GATES"])
    try:
        armed = json.loads((folder / "armed.json").read_text())
    except FileNotFoundError:
        return
    if armed["point"] != point or txid <= armed["after"].get(gate, txid):
        return
    here = folder / str(armed["number"])
    part = here / f"{gate}.{os.getpid()}.{threading.get_ident()}"
    part.write_text(json.dumps({"pid": os.getpid(), "txid": txid}))
    for visit in range(armed["visits"]):
        try:
            # A link, so that the marker is there whole or not at all, and once.
            (here / f"{gate}.{visit}").hardlink_to(part)
        except FileExistsError:
            continue
        # Opening waits for the other end.
        with (here / f"{gate}.{visit}.fifo").open("rb"):
            return


def install() -> None:
    """Prepare the gate inside the source; the others are in the driver's own code."""
    from kinesis_trident.checkpoint.store.batches import BatchStore

    original = BatchStore.create_pin

    @functools.wraps(original)
    def create_pin(self: Any, shard: str, pin: Any, epoch: int) -> Any:
        if shard.endswith(FIRST_SHARD) and pin.count:
            stop_at(PINNING, self._layout.application, pin.txid)
        return original(self, shard, pin, epoch)

    changed: Callable[..., Any] = create_pin
    BatchStore.create_pin = changed  # type: ignore[method-assign]
