"""What can go wrong at the command line: one root, each message is one sentence that says what to do."""

from __future__ import annotations

__all__ = ["ConsoleError"]


class ConsoleError(Exception):
    """The command cannot be carried out as it was given."""
