"""A finding: what is wrong with an application, where, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

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


class Level(enum.StrEnum):
    """The severity of a finding, or of all together: its word; the worst first, what is critical before the unknown.

    Attributes:
        exit_code: of monitoring plugins.
        style: on a terminal.
        color: in a notebook.
    """

    CRITICAL = "critical", 2, "bold red", "#c62828"
    UNKNOWN = "unknown", 3, "magenta", "#6a1b9a"
    WARNING = "warning", 1, "yellow", "#ef6c00"
    NOTE = "note", 0, "cyan", "#1565c0"
    OK = "ok", 0, "green", "#2e7d32"

    exit_code: int
    style: str
    color: str

    def __new__(cls, word: str, exit_code: int = 0, style: str = "", color: str = "") -> Self:
        """Make a level of its word."""
        level = str.__new__(cls, word)
        level._value_ = word
        level.exit_code, level.style, level.color = exit_code, style, color
        return level

    @property
    def rank(self) -> int:
        """Return its place in the order: 0 for the worst."""
        return list(Level).index(self)


def worst(levels: Iterable[Level]) -> Level:
    """Return the level of all together: notes are no trouble."""
    return min({*levels, Level.OK} - {Level.NOTE}, key=lambda level: level.rank)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, with a name for programs.

    Attributes:
        level: how bad it is.
        code: its name, which does not change.
        sentence: what is wrong, and where.
        remedy: what to do.
        shards: those concerned, as people name them; empty for the whole application.
    """

    level: Level
    code: Code
    sentence: str
    remedy: str
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a check; None for no limit."""

    lag_ms: int | None = None
    retrying: int | None = None
    dead: int | None = None
