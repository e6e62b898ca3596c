"""The figures of docs/reliability/figures.md about schedules: which are followed, and who sees planted errors.

`PYTHONPATH=tests:. python -m spec.schedules` plays them, and writes the tables.
"""

from __future__ import annotations

import pytest
from doc_tables import DocTable
from model.families import FAMILIES
from model.story import play

from spec.follow import NOT_FOLLOWED, RefusedError, bounds_of, follow
from spec.planted import PLANTED, RARE, Planted
from spec.seen import watching
from spec.stories import STORIES

__all__ = ["families_table", "follow_schedule", "measured_in", "planted_table"]

_SCHEDULES = 8
_WATCHED = 6
"""Schedules in which the model may see a planted error."""


def follow_schedule(family: str, seed: int) -> tuple[int, bool]:
    """Play a schedule; return how many steps were followed, none if one was refused, and whether the model objects."""
    with watching() as events:
        told = play(family, seed)
    try:
        return follow(told, events, bounds_of(family)), bool(told.world.violations)
    except RefusedError:
        return 0, bool(told.world.violations)


def families_table(measured: list[list[str]]) -> DocTable:
    """Return all families of the model, with the schedules, steps and refusals of those that are followed."""
    followed = sorted(FAMILIES.keys() - NOT_FOLLOWED.keys())
    return DocTable(
        "reliability/figures.md",
        "families: rendered from tests/spec/schedules.py",
        "end of families",
        ("family", "why it is not followed", "schedules", "steps", "refused"),
        [
            *((f"`{name}`", "", *figures) for name, figures in zip(followed, measured, strict=True)),
            *((f"`{name}`", why, "", "", "") for name, why in NOT_FOLLOWED.items()),
        ],
    )


def planted_table(measured: list[list[str]]) -> DocTable:
    """Return the errors that are planted in the code, and whether the model's own observer sees them too."""
    broken = {story.without: story.broken for story in STORIES}
    return DocTable(
        "reliability/figures.md",
        "planted: rendered from tests/spec/schedules.py",
        "end of planted",
        ("rule", "what is wrong in the code", "what shows it: schedules of a family", "the model's observer"),
        [
            *(
                (_linked(one.rule), one.what, f"`{one.family}`", *sees)
                for one, sees in zip(PLANTED, measured, strict=True)
            ),
            *(
                (
                    _linked(one.rule),
                    one.what,
                    f"the story of {_linked(one.family)}",
                    "does not" if broken[one.family] == "REUSED" else "sees it there",
                )
                for one in RARE
            ),
        ],
    )


def measured_in(table: DocTable, first: int) -> list[list[str]]:
    """Return the cells that a page has of a table from a column on, of the rows that were measured."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.read().splitlines()[2:]]
    return [row[first:] for row in rows]


def _linked(rule: str) -> str:
    return f"[`{rule}`](../protocol.md#{rule})"


def _measure_family(family: str) -> list[str]:
    steps = [follow_schedule(family, seed)[0] for seed in range(1, _SCHEDULES + 1)]
    print(family, sum(steps), flush=True)
    return [str(len(steps)), f"{sum(steps):,}", str(steps.count(0))]


def _measure_planted(planted: Planted) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)
        seen = any(follow_schedule(planted.family, seed)[1] for seed in range(1, _WATCHED + 1))
    print(planted, seen, flush=True)
    return ["sees it too" if seen else f"does not, in {_WATCHED} schedules"]


def main() -> None:
    """Play the schedules, and write the tables."""
    families_table([_measure_family(name) for name in sorted(FAMILIES.keys() - NOT_FOLLOWED.keys())]).write()
    planted_table([_measure_planted(one) for one in PLANTED]).write()


if __name__ == "__main__":
    main()
