"""The order of the words on the command line: options of a login stand on either side, and so does an action. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

_OF_COMMANDS = {"--root": 1, "--zookeeper": 1}
"""Options of commands that people type before them, too, with their numbers of values."""


class Words(TyperGroup):
    """The commands, whose words are put in order before they are read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the words in order, and read them."""
        passes_on = {
            name
            for name, command in self.commands.items()
            if command.context_settings.get("ignore_unknown_options")
        }
        return super().parse_args(ctx, arrange(args, _options(self.params), passes_on))


class Actions(TyperGroup):
    """The actions of a command: each stands before the application or after it; without one the first is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the action first, and read the words."""
        options = _options(one for command in self.commands.values() for one in command.params)
        # Of a line that is not finished a shell asks for what may come next.
        words = args if ctx.resilient_parsing else action_first(args, tuple(self.commands), options)
        return super().parse_args(ctx, words)


def actions_of(command: str, what: str, short_help: str) -> typer.Typer:
    """Return a command to add actions to, the one that is meant without any as the first."""
    text = (
        f"{what} An action stands before the application or after it; without one it is the first of these."
    )
    return typer.Typer(name=command, cls=Actions, help=text, short_help=short_help)


def _options(params: Iterable[Any]) -> dict[str, int]:
    """Return the options among the parameters of a command, with their numbers of values."""
    return {
        name: 0 if one.is_flag else 1
        for one in params
        if one.param_type_name == "option"
        for name in (*one.opts, *one.secondary_opts)
        if name not in ("--help", "--version", "-h")
    }


def arrange(args: Sequence[str], known: Mapping[str, int], passes_on: Collection[str] = ()) -> list[str]:
    """Return the words with the options of all commands first.

    Args:
        args: as typed.
        known: the options that stand before a command, with their numbers of values.
        passes_on: the commands that give all of their words to another program.
    """
    first: list[str] = []
    of_command: list[str] = []
    rest = [*args]
    while rest and rest[0].startswith("-") and rest[0] != "--":
        moved = _take(rest, _OF_COMMANDS)
        of_command += moved
        if not moved:
            # Also one that nobody knows, which click names.
            first += _take(rest, known) or [rest.pop(0)]
    if not rest or rest[0] in passes_on or rest[0] == "--":
        return [*first, *of_command, *rest]
    command, words = rest.pop(0), list[str]()
    while rest and rest[0] != "--":
        moved = _take(rest, known)
        first += moved
        if not moved:
            words.append(rest.pop(0))
    return [*first, command, *of_command, *words, *rest]


def _take(words: list[str], options: Mapping[str, int]) -> list[str]:
    """Take an option with its values from the front; nothing if another word stands there."""
    name, equals, _ = words[0].partition("=")
    if name not in options:
        return []
    count = 1 if equals else 1 + options[name]
    taken = words[:count]
    del words[:count]
    return taken


def action_first(words: Sequence[str], actions: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """Return the words with the action in front of all.

    Raises:
        BadParameter: a word stands where an action does.
    """
    rest, places = [*words], list[int]()
    while rest and rest[0] != "--":
        if not rest[0].startswith("-"):
            places.append(len(words) - len(rest))
        if not _take(rest, options):
            del rest[0]
    # Behind two dashes nothing is an option.
    places += range(len(words) - len(rest) + 1, len(words))
    named = [place for place in places[:2] if words[place] in actions]
    asks_help = not {"-h", "--help"}.isdisjoint(words)
    # An application may be called as an action is: one word alone is the application, and the first of two.
    if named and (len(places) > 1 or asks_help):
        return [words[named[-1]], *words[: named[-1]], *words[named[-1] + 1 :]]
    if len(places) > 1:
        msg = f"{words[places[1]]!r} is not one of {', '.join(actions)}, which stand before the application or after it"
        raise typer.BadParameter(msg)
    return [*words] if asks_help and not places else [actions[0], *words]
