"""A finding: what is wrong with an application, where, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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


class Level(enum.Enum):
    """The severity of a finding, or of all together; the worst first, what is critical before the unknown.

    Attributes:
        word: its name in JSON, on the page and in metrics.
        exit_code: of monitoring plugins.
        style: on a terminal.
        color: in a notebook.
    """

    CRITICAL = "critical", 2, "bold red", "#c62828"
    UNKNOWN = "unknown", 3, "magenta", "#6a1b9a"
    WARNING = "warning", 1, "yellow", "#ef6c00"
    NOTE = "note", 0, "cyan", "#1565c0"
    OK = "ok", 0, "green", "#2e7d32"

    def __init__(self, word: str, exit_code: int, style: str, color: str) -> None:
        self.word = word
        self.exit_code = exit_code
        self.style = style
        self.color = color

    @classmethod
    def of(cls, word: str) -> Level:
        """Return the level with this word."""
        return cls[word.upper()]

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
        commands: the lines in the remedy, as they are typed.
        shards: those concerned, as people name them; empty for the whole application.
    """

    level: Level
    code: Code
    sentence: str
    remedy: str
    commands: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a check; None for no limit."""

    lag_ms: int | None = None
    retrying: int | None = None
    dead: int | None = None
