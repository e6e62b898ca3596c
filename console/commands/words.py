"""The order of the words on the command line: options of a login stand on either side, and so does an action. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from typer.core import TyperGroup

from kinesis_trident.console.commands.checkpoints import Action
from kinesis_trident.console.commands.dead_letters import LetterAction
from kinesis_trident.console.commands.records import RetryAction

_ACTIONS: dict[str, Collection[str]] = {
    "checkpoints": tuple(Action),
    "dead-letters": tuple(LetterAction),
    "retries": tuple(RetryAction),
}
"""The actions of each command that has some; they stand after the application, or before it."""

_OF_COMMANDS = {"--root": 1, "--zookeeper": 1}
"""Options of commands that people type before them, too, with their numbers of values."""


class Words(TyperGroup):
    """The commands, whose words are put in order before they are read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the words in order, and read them."""
        own = {name: _options(self.commands[name].params) for name in _ACTIONS if name in self.commands}
        passes_on = {
            name
            for name, command in self.commands.items()
            if command.context_settings.get("ignore_unknown_options")
        }
        return super().parse_args(ctx, arrange(args, _options(self.params), own, passes_on))


def _options(params: Iterable[Any]) -> dict[str, int]:
    """Return the options among the parameters of a command, with their numbers of values."""
    return {
        name: 0 if one.is_flag else 1
        for one in params
        if one.param_type_name == "option"
        for name in (*one.opts, *one.secondary_opts)
        if name not in ("--help", "--version", "-h")
    }


def arrange(
    args: Sequence[str],
    known: Mapping[str, int],
    own: Mapping[str, Mapping[str, int]],
    passes_on: Collection[str] = (),
) -> list[str]:
    """Return the words with the options of all commands first, and the application before its action.

    Args:
        args: as typed.
        known: the options that stand before a command, with their numbers of values.
        own: those of each command that has actions.
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
    return [*first, command, *of_command, *_application_first(command, [*words, *rest], own)]


def _take(words: list[str], options: Mapping[str, int]) -> list[str]:
    """Take an option with its values from the front; nothing if another word stands there."""
    name, equals, _ = words[0].partition("=")
    if name not in options:
        return []
    count = 1 if equals else 1 + options[name]
    taken = words[:count]
    del words[:count]
    return taken


def _application_first(
    command: str, words: Sequence[str], own: Mapping[str, Mapping[str, int]]
) -> Sequence[str]:
    """Return the words after a command with an action that was typed before the application behind it."""
    actions, options = _ACTIONS.get(command, ()), own.get(command, {})
    rest, places = [*words], list[int]()
    while rest and rest[0] != "--":
        if not rest[0].startswith("-"):
            places.append(len(words) - len(rest))
        if not _take(rest, options):
            del rest[0]
    # Behind two dashes nothing is an option.
    places += range(len(words) - len(rest) + 1, len(words))
    if len(places) < 2 or words[places[0]] not in actions or words[places[1]] in actions:
        return words
    first, second = places[:2]
    return [*words[:first], *words[first + 1 : second + 1], words[first], *words[second + 1 :]]
