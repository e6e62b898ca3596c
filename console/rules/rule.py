"""A rule: one kind of trouble, how bad it is, what is said of each case, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kinesis_trident.console.figures import COMMAND, HomeFacts
from kinesis_trident.console.finding import Finding, Level


class Case(NamedTuple):
    """A case in which a rule applies.

    Attributes:
        sentence: what is wrong, and where.
        remedy: what to do, with the lines of `HomeFacts.line`.
        shards: those concerned, as people name them; empty for the whole application.
        level: how bad it is, if not as the rule says.
    """

    sentence: str
    remedy: str
    shards: tuple[str, ...] = ()
    level: Level | None = None


class Rule(NamedTuple):
    """The name of its findings, how bad they are, and the function that finds the cases."""

    code: str
    level: Level
    cases: Callable[[HomeFacts], Iterable[Case]]

    def find(self, facts: HomeFacts) -> Iterator[Finding]:
        """Yield a finding for each case."""
        for sentence, remedy, shards, level in self.cases(facts):
            parts = remedy.split(COMMAND)
            said = sentence[:1].upper() + sentence[1:]
            yield Finding(level or self.level, self.code, said, "".join(parts), tuple(parts[1::2]), shards)
