"""Searches all states of a small specification, breadth first: what is found has the shortest story."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

__all__ = ["Searched", "search_states"]

StateT = TypeVar("StateT", bound=Hashable)


class Searched(NamedTuple):
    """What is broken, by which steps, and how many states were reached: all, if nothing is."""

    broken: str
    story: tuple[str, ...]
    states: int


def search_states(
    start: StateT,
    steps: Callable[[StateT], Iterable[tuple[str, StateT, str]]],
    is_over: Callable[[StateT], bool] = lambda _: True,
) -> Searched:
    """Search until a step breaks something, or all states are reached.

    Args:
        start: the first state.
        steps: returns each step from a state: its name, the state after it, and what it breaks.
        is_over: tells whether nothing has to happen any more.
    """
    parents: dict[StateT, tuple[StateT, str] | None] = {start: None}
    frontier = [start]

    def story_of(s: StateT) -> list[str]:
        names, at = list[str](), parents[s]
        while at is not None:
            names.append(at[1])
            at = parents[at[0]]
        return names[::-1]

    while frontier:
        following = []
        for s in frontier:
            found = list(steps(s))
            if not found and not is_over(s):
                return Searched(
                    "STUCK: something is left, and nothing happens", (*story_of(s),), len(parents)
                )
            for name, after, broken in found:
                if broken:
                    return Searched(broken, (*story_of(s), name), len(parents))
                if after not in parents:
                    parents[after] = (s, name)
                    following.append(after)
        frontier = following
    return Searched("", (), len(parents))
