"""Points at which one process of a query stops for ever, so that a test can kill all of them just there.

`KT_BLOCK_AT` names the point, `KT_MARKER` the file that says it was reached, and `KT_AFTER` a txid: batches up to
that one pass. Only the first to come there stops.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["POINTS", "block_at", "install"]


def block_at(point: str, txid: int, shard: str = "") -> None:
    """Say that `point` was reached, and never return; nothing if another point, or an earlier batch, is wanted."""
    if os.environ.get("KT_BLOCK_AT") != point or txid <= int(os.environ.get("KT_AFTER", "0")):
        return
    marker = Path(os.environ["KT_MARKER"])
    part = marker.with_name(f"{marker.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_text(json.dumps({"point": point, "txid": txid, "shard": shard, "pid": os.getpid()}))
    try:
        # A link, so that the marker is there whole or not at all, and once.
        marker.hardlink_to(part)
    except FileExistsError:
        return
    threading.Event().wait()


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by `around(original, self, *args, **kwargs)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(self: object, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, self), *args, **kwargs)

    setattr(owner, name, replaced)


def _planned() -> None:
    from kinesis_trident.spout.planner.run import SourceRun

    def partitions(original: Callable[..., Any], start: Any, end: Any) -> Any:
        block_at("planned", end.txid)
        return original(start, end)

    _wrap(SourceRun, "partitions", partitions)


def _stored() -> None:
    from kinesis_trident.checkpoint.store.batches import BatchStore

    def put(original: Callable[..., Any], plan: Any, epoch: int) -> Any:
        result = original(plan, epoch)
        block_at("stored", plan.txid)
        return result

    _wrap(BatchStore, "put", put)


def _pin(before: bool) -> None:
    from kinesis_trident.checkpoint.store.batches import BatchStore

    def create_pin(original: Callable[..., Any], shard: str, pin: Any, epoch: int) -> Any:
        if before:
            block_at("before-pin", pin.txid, shard)
        result = original(shard, pin, epoch)
        if not before:
            block_at("after-pin", pin.txid, shard)
        return result

    _wrap(BatchStore, "create_pin", create_pin)


def _dead_letter() -> None:
    from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter

    def write(original: Callable[..., Any], **given: Any) -> Any:
        result = original(**given)
        block_at("dead-letter", given["txid"], next(iter(given["letters"])))
        return result

    _wrap(DeadLetterWriter, "write", write)


def _published() -> None:
    from kinesis_trident.bolt.tracking.current_batch import CurrentBatch

    original = CurrentBatch.publish

    def publish(self: CurrentBatch, not_done: Any) -> None:
        original(self, not_done)
        block_at("published", self.txid)

    CurrentBatch.publish = publish  # type: ignore[method-assign]


def _committed() -> None:
    from kinesis_trident.spout.planner.run import SourceRun

    def latest(original: Callable[..., Any], start: Any, max_records: int | None) -> Any:
        block_at("committed", start.txid)
        return original(start, max_records)

    _wrap(SourceRun, "latest", latest)


def _settling() -> None:
    from kinesis_trident.checkpoint.store import atomic_writes
    from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
    from kinesis_trident.checkpoint.store.shards import ShardStore

    # Each shard in a multi of its own.
    atomic_writes.PACK_SIZE = 1
    under_way: list[int] = []

    def settle(
        original: Callable[..., Any],
        updates: Any,
        letters: Any,
        lineage: Any,
        settled: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        under_way[:] = [settled.txid, 0]
        try:
            return original(updates, letters, lineage, settled, *rest, **more)
        finally:
            under_way.clear()

    def begin(original: Callable[..., Any], ops: Any, epoch: int) -> Callable[[], None]:
        if under_way and under_way[1] == 1:
            block_at("settling", under_way[0])
        finish: Callable[[], None] = original(ops, epoch)
        if not under_way:
            return finish
        finish()
        under_way[1] += 1
        return lambda: None

    _wrap(ShardStore, "settle", settle)
    _wrap(FencedNodes, "begin", begin)


POINTS: dict[str, tuple[str, Callable[[], None]] | None] = {
    "planned": ("kinesis_trident.spout.planner.run", _planned),
    "stored": ("kinesis_trident.checkpoint.store.source_store", _stored),
    "before-pin": ("kinesis_trident.checkpoint.store.source_store", functools.partial(_pin, True)),
    "after-pin": ("kinesis_trident.checkpoint.store.source_store", functools.partial(_pin, False)),
    "before-write": None,
    "written": None,
    "published": ("kinesis_trident.bolt.tracking.current_batch", _published),
    "committed": ("kinesis_trident.spout.planner.run", _committed),
    "settling": ("kinesis_trident.checkpoint.store.source_store", _settling),
    "dead-letter": ("kinesis_trident.spout.failed_records.letter_writer", _dead_letter),
}
"""The change for each point, and its module; points in the batch function are in the driver's own code."""


class _Changed(MetaPathFinder):
    """Lets a change follow the import of a module.

    To import it for that would keep Spark waiting, which gives a worker ten seconds from its start to connect.
    """

    def __init__(self, module: str, change: Callable[[], None]) -> None:
        self._module, self._change = module, change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._module else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._change()

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Prepare the point that the environment names."""
    change = POINTS[os.environ["KT_BLOCK_AT"]] if os.environ.get("KT_BLOCK_AT") else None
    if change:
        sys.meta_path.insert(0, _Changed(*change))
