"""The options that say which application a command is about: in one place, for all commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from kinesis_trident.checkpoint.zookeeper.command_line import DEFAULT_ROOT
from kinesis_trident.console.target import Application, Root, Stream, ZooKeeper, target_of

CommandT = TypeVar("CommandT", bound=Callable[..., None])


def _options(
    *,
    context: typer.Context,
    application: Application,
    zookeeper: ZooKeeper,
    root: Root = DEFAULT_ROOT,
    stream: Stream = None,
) -> None:
    """The options in place of `target`; without APP and --stream in place of `everything`."""


_OPTIONS = inspect.signature(_options, eval_str=True).parameters
_OF_EVERYTHING = ("context", "zookeeper", "root")


def add_command(commands: typer.Typer, name: str, **given: Any) -> Callable[[CommandT], CommandT]:
    """Add a command that takes a `Target`: as `target` that of one application, or as `everything` all below the root.

    On the command line it is APP, --zookeeper, --root and --stream. The optional ones stand in its place, the others
    before all. A command that declares one of them itself gets that, too.
    """

    def add(function: CommandT) -> CommandT:
        own = inspect.signature(function, eval_str=True).parameters
        parameter = "target" if "target" in own else "everything"
        names = list(_OPTIONS) if parameter == "target" else _OF_EVERYTHING
        missing = [_OPTIONS[one] for one in names if one not in own]
        shown = [one for one in missing if one.default is one.empty]
        for one in own.values():
            shown += [each for each in missing if each not in shown] if one.name == parameter else [one]

        def run(**values: Any) -> None:
            where = {"application": "", "stream": None} | {one: values[one] for one in names}
            target = target_of(where.pop("context").obj, **where)
            function(**{one: values[one] for one in own if one != parameter}, **{parameter: target})

        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        commands.command(name, **given)(run)
        return function

    return add
