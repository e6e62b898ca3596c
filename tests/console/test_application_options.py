"""The options of an application stand in one place, and each command takes those that it needs."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kinesis_trident.checkpoint.zookeeper.command_line import DEFAULT_ROOT
from kinesis_trident.console.cli import app
from kinesis_trident.console.commands.application_options import MadeOf, add_command
from kinesis_trident.console.target import Login, Target

COMMANDS = typer.main.get_group(app).commands
ACTIONS = {
    f"{name} {action}": command
    for name, group in COMMANDS.items()
    for action, command in getattr(group, "commands", {}).items()
}
targets: list[Target] = []
others: list[object] = []

made = typer.Typer()


@add_command(made, "one")
def one(*, first: bool = False, target: Target, last: bool = False) -> None:
    """Say one application."""
    targets.append(target)
    others.append((first, last))


@add_command(made, "all")
def every(*, everything: Target) -> None:
    """Say them all."""
    targets.append(everything)


@add_command(made, "own")
def own(*, stream: Annotated[str, typer.Option(help="Ours.")], target: Target) -> None:
    """Declare the stream itself."""
    targets.append(target)
    others.append(stream)


def pair(*, left: int = 1, right: int = 2) -> tuple[int, int]:
    return left, right


def nested(*, name: str = "m", numbers: Annotated[tuple[int, int], MadeOf(pair)]) -> str:
    return f"{name} {numbers}"


@add_command(made, "made")
def make(*, first: bool = False, said: Annotated[str, MadeOf(nested)], last: bool = False) -> None:
    """Take what is made of others, which are made of others."""
    others.append((first, said, last))


def test_a_value_that_is_made_of_options_is_one_parameter() -> None:
    others.clear()
    done = CliRunner().invoke(made, ["made", "--name", "n", "--right", "5", "--last"])
    assert done.exit_code == 0, done.output
    assert others == [(False, "n (1, 5)", True)]
    names = [option.name for option in typer.main.get_group(made).commands["made"].params]
    assert names == ["first", "name", "left", "right", "last"]


@pytest.mark.parametrize(
    ("words", "where", "given"),
    [
        (["one", "a"], (DEFAULT_ROOT, "a", None), [(False, False)]),
        (["one", "a", "--root", "/r", "--stream", "s", "--last"], ("/r", "a", "s"), [(False, True)]),
        (["all", "--root", "/r"], ("/r", "", None), []),
        (["own", "a", "--stream", "s"], (DEFAULT_ROOT, "a", "s"), ["s"]),
    ],
)
def test_a_command_gets_the_target_of_its_options(
    words: list[str], where: tuple[str, str, str | None], given: list[object]
) -> None:
    targets.clear()
    others.clear()
    done = CliRunner().invoke(made, [*words, "--zookeeper", "h:1"], obj=Login(3.0, None, None, None))
    assert done.exit_code == 0, done.output
    [target] = targets
    assert (target.zookeeper.hosts, target.zookeeper.session_timeout) == ("h:1", 3.0)
    assert (target.root, target.application, target.stream) == where
    assert others == given


def test_optional_ones_stand_in_the_place_of_the_target() -> None:
    names = [option.name for option in typer.main.get_group(made).commands["one"].params]
    assert names == ["application", "zookeeper", "first", "root", "stream", "last"]


@pytest.mark.parametrize("words", [["one"], ["one", "a", "--zookeeper", "h:1", "--shard", "s"]])
def test_what_is_missing_or_unknown_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINESIS_TRIDENT_ZOOKEEPER", raising=False)
    assert CliRunner().invoke(made, words).exit_code == 2


@pytest.mark.parametrize("option", ["--root", "--zookeeper", "--stream", "--json", "--watch", "--shard"])
def test_an_option_has_one_help_in_all_commands_of_an_application(option: str) -> None:
    helps = {
        one.help
        for name, command in (COMMANDS | ACTIONS).items()
        # Their streams are those of Kinesis.
        if name not in ("doctor", "import", "put", "tail", "kinesis", "zookeeper")
        for one in command.params
        if option in one.opts
    }
    assert len(helps) == 1
