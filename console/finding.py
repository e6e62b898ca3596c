"""A finding: what is wrong with an application, where, and what to do."""

from __future__ import annotations

import enum
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


class Level(enum.IntEnum):
    """The severity of a finding; the values are the exit codes of monitoring plugins, except for NOTE."""

    NOTE = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


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
