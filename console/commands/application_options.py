"""Options that several commands share, as one parameter of each: the application it is about, how Kinesis is asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, get_args

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


class MadeOf(NamedTuple):
    """Marks the parameter of a command that is made by a function: the function's parameters stand in its place."""

    make: Callable[..., Any]


def _parts_of(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield what stands on the command line for a parameter: it, or what it is made of."""
    maker = _maker_of(parameter)
    if maker is None:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    else:
        for one in inspect.signature(maker, eval_str=True).parameters.values():
            yield from _parts_of(one)


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(function, eval_str=True).parameters
    makers = {name: _maker_of(one) for name, one in parameters.items()}
    return function(
        **{name: values[name] if made is None else _call(made, values) for name, made in makers.items()}
    )


def _maker_of(parameter: inspect.Parameter) -> Callable[..., Any] | None:
    marks = (one for one in get_args(parameter.annotation) if isinstance(one, MadeOf))
    return next((mark.make for mark in marks), None)


def add_command(commands: typer.Typer, name: str, **given: Any) -> Callable[[CommandT], CommandT]:
    """Add a command that takes a `Target`: as `target` that of one application, or as `everything` all below the root.

    On the command line it is APP, --zookeeper, --root and --stream. The optional ones stand in its place, the others
    before all. A command that declares one of them itself gets that, too. What is `MadeOf` others is made of these.
    """

    def add(function: CommandT) -> CommandT:
        own = inspect.signature(function, eval_str=True).parameters
        parameter = next((one for one in ("target", "everything") if one in own), "")
        names = {"target": list(_OPTIONS), "everything": _OF_EVERYTHING, "": ()}[parameter]
        missing = [_OPTIONS[one] for one in names if one not in own]
        shown = [one for one in missing if one.default is one.empty]
        for one in own.values():
            shown += (
                [each for each in missing if each not in shown] if one.name == parameter else _parts_of(one)
            )

        def run(**values: Any) -> None:
            if parameter:
                where = {"application": "", "stream": None} | {one: values[one] for one in names}
                values[parameter] = target_of(where.pop("context").obj, **where)
            _call(function, values)

        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        commands.command(name, **given)(run)
        return function

    return add
