"""The table of options: each dataclass field is a line, used to parse values and to render the documentation.

`other_connectors.toml` says of options of other connectors, which do not exist here, what to use instead of each.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from kinesis_trident.common.redaction import redact
from kinesis_trident.common.visible_text import shorten
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers


@dataclass(frozen=True, slots=True)
class Option:
    """One line of the table.

    `default` is written as a user writes it, None for none. `parser` turns text into the value or raises `ValueError`,
    whose message says what is accepted. `part_of` is the option that this one is an alternative to, or belongs to.
    """

    key: str
    parser: parsers.Parser
    default: str | None
    sentence: str
    aliases: tuple[str, ...] = ()
    secret: bool = False
    part_of: str | None = None

    def parse(self, name: str, given: str) -> Any:
        """Parse the text `given`, which a user set under `name`.

        Raises:
            OptionsError: naming the option, the given text and what is accepted.
        """
        unit = "ms" if name.lower().endswith("ms") else "s" if name.lower().endswith("sec") else ""
        try:
            return self.parser(given + unit if unit and re.fullmatch(r"[\d.]+", given) else given)
        except ValueError as error:
            said = "***" if self.secret else shorten(repr(redact(given)), 300)
            msg = f"option {self.spell(name)} is {said}. Expected: {shorten(str(error))}"
            raise OptionsError(msg) from None

    def spell(self, name: str) -> str:
        """Return `name` as the documentation spells it: Spark passes all names in lower case."""
        plain = name.lower().removeprefix("kinesis.")
        return next((one for one in (self.key, *self.aliases) if one.lower() == plain), name)


def option(
    key: str, parser: parsers.Parser, default: str | None, sentence: str, *aliases: str, secret: bool = False
) -> Any:
    """Return a dataclass field that is one line of the table."""
    line = Option(key, parser, default, sentence, aliases, secret)
    return field(default=None if default is None else parser(default), metadata={"option": line})


def options_of(cls: type) -> dict[str, Option]:
    """Return the options of a dataclass by field name, in order."""
    found: dict[str, Option] = {}
    for item in fields(cls):
        assert item.default is not MISSING
        found[item.name] = item.metadata["option"]
    return found


def by_field(cls: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """Change the keys of a map from option keys to names of dataclass fields."""
    names = {line.key: name for name, line in options_of(cls).items()}
    return {names[key]: value for key, value in found.items()}


def read_options(
    known: Mapping[str, Option], given: Mapping[str, str], page: str = "docs/options.md"
) -> dict[str, Any]:
    """Parse the values that a user set, by option key.

    `known` has all names and aliases in lower case. `page` is the page of the documentation that lists them.

    Raises:
        OptionsError: an unknown option, an invalid value, or an option given twice with different values.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        line = find(known, name, page)
        parsed = line.parse(name, str(value))
        if line.key in found and found[line.key] != parsed:
            msg = f"{names[line.key]} and {line.spell(name)} are the same option, set to two values. Give only one"
            raise OptionsError(msg)
        found[line.key], names[line.key] = parsed, line.spell(name)
    return found


def by_name(table: Iterable[Option]) -> dict[str, Option]:
    """Return the options by all their names and aliases, in lower case."""
    return {name.lower(): option for option in table for name in (option.key, *option.aliases)}


def find(known: Mapping[str, Option], name: str, page: str = "docs/options.md") -> Option:
    """Return the option with the name or alias `name`.

    Raises:
        OptionsError: there is none. The message names the nearest one or the `page` of the documentation; for an option
            that was removed, and for another connector's, it says what to use instead.
    """
    key = name.lower().removeprefix("kinesis.")
    if key in known:
        return known[key]
    if key in ("path", "paths"):
        msg = f"unknown option {name}: load() takes no path. Name the stream with the option streamName"
        raise OptionsError(msg)
    if removed := REMOVED.get(key):
        msg = f"option {removed[0]} is no longer there: {removed[1]}"
        raise OptionsError(msg)
    if sentence := sentence_for(key):
        msg = f"option {name} belongs to another connector. {sentence.rstrip('.')}"
        raise OptionsError(msg)
    near = _find_nearest(known, key)
    hint = f". Did you mean {near}?" if near else f". See {page} for all options"
    lowered = " (Spark passes names in lower case)" if name.islower() else ""
    msg = f"unknown option {name}{lowered}{hint}"
    raise OptionsError(msg)


def _find_nearest(known: Mapping[str, Option], key: str) -> str:
    """Return the documented name of the option that is meant, or an alias with a letter wrong; empty if none is near.

    An alias may be named as another option is: `retryIntervalMs` is of the client, not of failed records.
    """
    scores = {name: difflib.SequenceMatcher(None, name, key).ratio() for name in known}
    nearest = max(scores, key=lambda name: scores[name])
    if scores[nearest] > _ONE_LETTER:
        return known[nearest].spell(nearest)
    documented = max(scores, key=lambda name: scores[name] + _PREFERENCE * (known[name].key.lower() == name))
    return known[documented].key if scores[documented] >= _NEAR else ""


_NEAR, _ONE_LETTER, _PREFERENCE = 0.6, 0.94, 0.1
"""Ratios of `SequenceMatcher`."""

REMOVED: Mapping[str, tuple[str, str]] = {
    "taskspershard": (
        "tasksPerShard",
        "one task reads a shard. Remove it; repartition() spreads the rows over tasks (docs/backfill.md)",
    ),
}
"""Options that an earlier version had, by their names in lower case: the name as it was written, and what to do."""


@dataclass(frozen=True, slots=True)
class OtherOption:
    """Names as their connectors spell them, without the prefix `kinesis.`, and one sentence; `*` is any text.

    An option of other sinks that is an alias of one of ours (`spout.options.sink`) is refused by a read alone.
    """

    names: tuple[str, ...]
    sentence: str
    is_ours_of_writes: bool = False


@cache
def other_options() -> tuple[OtherOption, ...]:
    """Return all options of other connectors, in the order of the documentation."""
    text = files(__package__).joinpath("other_connectors.toml").read_text("utf-8")
    return tuple(
        OtherOption(tuple(one["names"]), one["sentence"], kind == "write")
        for kind, options in tomllib.loads(text).items()
        for one in options
    )


def sentence_for(key: str) -> str | None:
    """Return what to use instead of another connector's option, by its name in lower case; None if unknown."""
    named = {name.lower(): other.sentence for other in other_options() for name in other.names}
    starts = (sentence for name, sentence in named.items() if name[-1] == "*" and key.startswith(name[:-1]))
    return named.get(key) or next(starts, None)
