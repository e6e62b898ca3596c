"""The keys of a bolt's tasks in one state: each task has its own; those of the first are named as users name them."""

from __future__ import annotations

from typing import Self

import msgspec

from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.trident.errors import SerializationError
from kinesis_trident.trident.state import Key

_OF_TASK = "$TASK$"


class TaskKeys(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The number of the tasks whose keys a state holds; it keeps that beside its marks.

    `is_fixed` is False where Spark chooses their number, batch by batch: then it is the greatest so far.
    """

    tasks: int
    is_fixed: bool = True

    def meet(self, held: Self | None) -> TaskKeys | None:
        """Return what the state holds from now on; None if keys that it holds would be no task's any more."""
        most = max(self.tasks, held.tasks if held is not None else 0)
        return None if self.is_fixed and most > self.tasks else TaskKeys(most, self.is_fixed)

    def refuse(self, held: Self) -> str:
        """Return why what the state holds does not fit, and what to do."""
        tasks = count_noun(held.tasks, "task")
        return (
            f"holds keys of {tasks}, and the bolt now has them in {self.tasks}: what the other tasks have "
            f"counted would be lost. Nothing was written. Give the bolt {tasks} or more and the grouping of "
            "before, or its state another keyPrefix, table or folder"
        )


def key_of(task: int, key: Key) -> Key:
    """Return the key of a state for a key of a task. The first one's are the same, as other programs name them.

    Raises:
        SerializationError: the task's key begins as those of other tasks do.
    """
    if key[:1] == (_OF_TASK,):
        msg = f"the key {key!r} begins with {_OF_TASK!r}, as those of tasks do. Begin it with another value"
        raise SerializationError(msg)
    return (_OF_TASK, task, *key) if task else key


def own_key(task: int, key: Key) -> Key | None:
    """Return the key of a task for a key of the state; None if it is another task's."""
    of = key[1] if key[:1] == (_OF_TASK,) else 0
    return None if of != task else key[2:] if task else key
