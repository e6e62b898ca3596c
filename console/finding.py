"""A finding: what is wrong with an application, where, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

FRESH_MS = 15 * 60_000
"""Milliseconds for which what has happened once is told as something that goes on."""


class Level(enum.Enum):
    """The severity of a finding, or of all together; the worst first, what is critical before the unknown.

    Its value is its name in JSON, on the page and in metrics.
    """

    exit_code: int
    style: str
    color: str

    CRITICAL = "critical", 2, "bold red", "#c62828"
    UNKNOWN = "unknown", 3, "magenta", "#6a1b9a"
    WARNING = "warning", 1, "yellow", "#ef6c00"
    NOTE = "note", 0, "cyan", "#1565c0"
    OK = "ok", 0, "green", "#2e7d32"

    def __new__(cls, name: str, exit_code: int, style: str, color: str) -> Level:
        """Take a row: its name, the exit code of monitoring plugins, the looks on a terminal and in a notebook."""
        level = object.__new__(cls)
        level._value_, level.exit_code, level.style, level.color = name, exit_code, style, color
        return level

    @property
    def rank(self) -> int:
        """Return its place in the order: 0 for the worst."""
        return list(Level).index(self)


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
    code: str
    sentence: str
    remedy: str
    commands: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """The limits of a check; None for no limit."""

    lag_ms: int | None = None
    retrying: int | None = None
    dead: int | None = None


NO_LIMITS = Limits()
