"""Finds the tuples that a bolt keeps: those that its attributes lead to. Nothing waits for the garbage collector."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import numpy as np

from kinesis_trident.bolt.storm.received import HeldTuple

# A traceback has the locals of code that failed: nobody keeps a tuple there.
_CLOSED = (ModuleType, type, FrameType, TracebackType)


def find_kept_by(bolt: object, tuples: Collection[HeldTuple], but: tuple[type, ...]) -> set[int]:
    """Return the ids of those tuples that the attributes of a bolt, or the globals of its code, lead to.

    What is near is looked at first. Of the globals, which lead to all of a process (loggers, clients), only the
    containers and the objects of the bolt's own module are looked into.

    `but`: types of objects that are not looked into.
    """
    wanted = {id(tup) for tup in tuples}
    seen: set[int] = set()
    own = [bolt, *(one for kind in type(bolt).__mro__ for one in vars(kind).values())]
    found = _find_reached(own, wanted, seen, lambda one: not isinstance(one, (*_CLOSED, *but)))
    if len(found) < len(wanted):
        module = type(bolt).__module__
        given = getattr(getattr(type(bolt), "execute", None), "__globals__", {}).values()
        found |= _find_reached(
            given,
            wanted - found,
            seen,
            lambda one: isinstance(one, Mapping | Sequence | Set | deque) or type(one).__module__ == module,
        )
    return found


def _find_reached(
    roots: Iterable[Any], wanted: set[int], seen: set[int], is_open: Callable[[Any], bool]
) -> set[int]:
    """Return those of the wanted tuples that objects lead to, through those that are `is_open`."""
    todo, found = deque(roots), set[int]()
    while todo and len(found) < len(wanted):
        one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, HeldTuple):
            if id(one) in wanted:
                found.add(id(one))
        elif not is_open(one):
            continue
        elif isinstance(one, FunctionType):
            # Its globals are those of its module, which may have everything.
            todo += [one.__closure__, one.__defaults__, one.__kwdefaults__]
        elif isinstance(one, np.ndarray):
            todo += one.ravel().tolist() if one.dtype == object else []
        elif not isinstance(one, str | bytes | bytearray):
            todo += gc.get_referents(one)
    return found
