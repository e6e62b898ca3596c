"""A finding: what is wrong with an application, where, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal

import msgspec

Code = Literal[
    "all-fail",
    "blocked",
    "consumer-shared",
    "corrupt-node",
    "data-loss",
    "dead-letters",
    "exhausted",
    "falling-behind",
    "held",
    "many-waiting",
    "max-dead",
    "max-lag",
    "max-retrying",
    "never-started",
    "not-asked",
    "not-running",
    "parent-does-not-end",
    "rejected-requests",
    "retention",
    "retrying",
    "shards-apart",
    "slow-batch",
    "slow-call",
    "start-fails",
    "takeover",
    "throttled",
    "unavailable",
    "unknown-lag",
    "unusable-key",
]
"""The names of findings; docs/runbook.md has an entry for each."""


class Level(enum.Enum):
    """The severity of a finding, or of all together; the worst first, what is critical before the unknown.

    Its value is its name in JSON, on the page and in metrics.
    """

    CRITICAL = "critical"
    UNKNOWN = "unknown"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"

    @property
    def exit_code(self) -> int:
        """Return the exit code of monitoring plugins."""
        return _LOOKS[self][0]

    @property
    def style(self) -> str:
        """Return its looks on a terminal."""
        return _LOOKS[self][1]

    @property
    def color(self) -> str:
        """Return its color in a notebook."""
        return _LOOKS[self][2]

    @property
    def rank(self) -> int:
        """Return its place in the order: 0 for the worst."""
        return list(Level).index(self)


_LOOKS = {
    Level.CRITICAL: (2, "bold red", "#c62828"),
    Level.UNKNOWN: (3, "magenta", "#6a1b9a"),
    Level.WARNING: (1, "yellow", "#ef6c00"),
    Level.NOTE: (0, "cyan", "#1565c0"),
    Level.OK: (0, "green", "#2e7d32"),
}
"""By level: the exit code, the style on a terminal, the color in a notebook."""


def worst(levels: Iterable[Level]) -> Level:
    """Return the level of all together: notes are no trouble."""
    return min({*levels, Level.OK} - {Level.NOTE}, key=lambda level: level.rank)


class Finding(msgspec.Struct, frozen=True):
    """Something that a person should know, with a name for programs.

    Attributes:
        level: how bad it is.
        code: its name, which does not change.
        sentence: what is wrong, and where.
        remedy: what to do.
        commands: the lines in the remedy, as they are typed.
        shards: those concerned, as people name them; empty for the whole application.
    """

    level: Level
    code: Code
    sentence: str
    remedy: str
    commands: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """The limits of a check; None for no limit."""

    lag_ms: int | None = None
    retrying: int | None = None
    dead: int | None = None
