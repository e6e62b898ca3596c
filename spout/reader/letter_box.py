"""Writes the dead letters of turns that a task reads side by side: one file, before the first of their pins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kinesis_trident.spout.errors import DeadLetterError
from kinesis_trident.spout.failed_records.letter_writer import Letter


@dataclass(eq=False, slots=True)
class _Group:
    """The turns that wait for each other.

    Attributes:
        missing: the shards whose letters are still to come.
        letters: those that came, by shard.
        is_closed: they are being written, or were.
        is_written: no turn has to wait any more.
        error: why they are not written.
    """

    missing: set[str]
    letters: dict[str, Sequence[Letter]] = field(default_factory=dict)
    is_closed: bool = False
    is_written: bool = False
    error: Exception | None = None


class LetterBox:
    """Collects the letters of each group of turns. Thread-safe: a turn waits in its own thread until all are written.

    Args:
        groups: the shards of turns that may have letters; all turns of a group run at the same time.
        write: writes letters by shard; durable on return.
    """

    def __init__(
        self, groups: Iterable[Collection[str]], write: Callable[[dict[str, Sequence[Letter]]], object]
    ) -> None:
        self._write = write
        self._changed = threading.Condition()
        made = [_Group(set(shards)) for shards in groups]
        self._groups = {shard: group for group in made for shard in group.missing}

    def post(self, shard: str, letters: Sequence[Letter]) -> None:
        """Write a turn's letters with those of its group; durable on return.

        Raises:
            DeadLetterError: they cannot be written, or the task has ended.
        """
        group = self._groups.get(shard)
        if group is None or shard not in group.missing:
            if letters:
                self._write({shard: letters})
            return
        with self._changed:
            group.letters[shard] = letters
            group.missing.discard(shard)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not group.missing or group.is_closed)
            is_last = not group.is_closed
            group.is_closed = True
            if not is_last:
                self._changed.wait_for(lambda: group.is_written)
        if is_last:
            self._write_group(group)
        if group.error is not None:
            raise group.error

    def leave(self, shard: str) -> None:
        """Let the others of a group go on without a turn that has ended."""
        with self._changed:
            if shard in self._groups:
                self._groups[shard].missing.discard(shard)
                self._changed.notify_all()

    def close(self) -> None:
        """Let no turn wait any more, because the task has ended: what is not written stays so."""
        with self._changed:
            for group in self._groups.values():
                if not group.is_closed:
                    group.error = DeadLetterError(
                        "the task has ended; its dead letters are written by the next one"
                    )
                    group.is_closed = group.is_written = True
            self._changed.notify_all()

    def _write_group(self, group: _Group) -> None:
        try:
            # In the order of the shards, whichever turn came first: a task that is repeated writes the same file.
            if letters := {
                shard: group.letters[shard] for shard in sorted(group.letters) if group.letters[shard]
            }:
                self._write(letters)
        except Exception as error:
            group.error = error
        finally:
            with self._changed:
                group.is_written = True
                self._changed.notify_all()
