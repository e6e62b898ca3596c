"""The table of options: fields of a dataclass are its lines, from which values are read and the documentation made."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.other_connectors import sentence_for
from kinesis_trident.spout.options.redaction import shown

__all__ = ["Option", "by_field", "by_name", "find", "markdown", "option", "options_of", "read_options"]


@dataclass(frozen=True, slots=True)
class Option:
    """One line of the table.

    `default` is in the form a user would write it, None for none. `parser` turns text into the value or
    raises `ValueError` with what is accepted. `part_of`: the option that this one is another way to give, or stands
    beside without a value of its own.
    """

    key: str
    parser: parsers.Parser
    default: str | None
    sentence: str
    aliases: tuple[str, ...] = ()
    secret: bool = False
    part_of: str | None = None

    def parse(self, name: str, given: str) -> Any:
        """The value of `given`, which came under `name`.

        Raises:
            OptionsError: naming the option, what was given and what is accepted.
        """
        unit = "ms" if name.lower().endswith("ms") else "s" if name.lower().endswith("sec") else ""
        try:
            return self.parser(given + unit if unit and re.fullmatch(r"[\d.]+", given) else given)
        except ValueError as error:
            said = "***" if self.secret else repr(shown(given))
            msg = f"option {self.called(name)} is {said}; accepted is {error}"
            raise OptionsError(msg) from None

    def called(self, name: str) -> str:
        """`name` as the documentation writes it: Spark hands all names over in lower case."""
        plain = name.lower().removeprefix("kinesis.")
        return next((one for one in (self.key, *self.aliases) if one.lower() == plain), name)


def option(
    key: str, parser: parsers.Parser, default: str | None, sentence: str, *aliases: str, secret: bool = False
) -> Any:
    """A dataclass field that is an option: one line of the table."""
    line = Option(key, parser, default, sentence, aliases, secret)
    return field(default=None if default is None else parser(default), metadata={"option": line})


def options_of(cls: type) -> dict[str, Option]:
    """The options that the fields of a dataclass are, by the fields' names, in their order."""
    found: dict[str, Option] = {}
    for item in fields(cls):
        assert item.default is not MISSING
        found[item.name] = item.metadata["option"]
    return found


def by_field(cls: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """Values by option key as values by the name of the dataclass's field."""
    names = {line.key: name for name, line in options_of(cls).items()}
    return {names[key]: value for key, value in found.items()}


def read_options(
    known: Mapping[str, Option], given: Mapping[str, str], page: str = "docs/options.md"
) -> dict[str, Any]:
    """The values that a user gave, by option key; `known` has all names and aliases in lower case.

    `page` of the documentation lists them.

    Raises:
        OptionsError: an unknown option, a value that is not accepted, or one option given twice.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        line = find(known, name, page)
        parsed = line.parse(name, str(value))
        if line.key in found and found[line.key] != parsed:
            msg = f"{names[line.key]} and {line.called(name)} are one option, given two values: give one"
            raise OptionsError(msg)
        found[line.key], names[line.key] = parsed, line.called(name)
    return found


def by_name(table: Iterable[Option]) -> dict[str, Option]:
    """The options by all their names, in lower case."""
    return {name.lower(): option for option in table for name in (option.key, *option.aliases)}


def markdown(table: Iterable[Option]) -> str:
    """Options as a Markdown table, for the documentation."""
    lines = ["| option | default | also accepted as | what it does |", "|---|---|---|---|"]
    for option in table:
        default = f"`{option.default}`" if option.default is not None else ""
        aliases = ", ".join(f"`{alias}`" for alias in option.aliases)
        lines.append(f"| `{option.key}` | {default} | {aliases} | {option.sentence} |")
    return "\n".join(lines) + "\n"


def find(known: Mapping[str, Option], name: str, page: str = "docs/options.md") -> Option:
    """The option that a user calls `name`.

    Raises:
        OptionsError: there is none; it names the nearest one, or the `page` of the documentation, and of another
            connector's option says what to use here.
    """
    key = name.lower().removeprefix("kinesis.")
    if key in known:
        return known[key]
    if key in ("path", "paths"):
        msg = f"unknown option {name}: load() takes no path here, the option streamName names the stream"
        raise OptionsError(msg)
    if sentence := sentence_for(key):
        msg = f"option {name} is another connector's. {sentence.rstrip('.')}"
        raise OptionsError(msg)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = (
        f"; did you mean {known[near[0]].called(near[0])}?" if near else f"; see {page} for those there are"
    )
    lowered = " (Spark tells names in lower case)" if name.islower() else ""
    msg = f"unknown option {name}{lowered}{hint}"
    raise OptionsError(msg)
