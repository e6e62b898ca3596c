"""`rename`: the state goes on under another name, hostile ones too, and each name that is not the newest is refused."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import Lives, numbers
from command_line import Command
from situations import A, filled

from kinesis_trident.checkpoint.errors import RenamedError
from kinesis_trident.spout.errors import CheckpointMismatchError


@pytest.fixture
def lives(make_lives: Callable[..., Lives]) -> Lives:
    return make_lives(retryBackoff="1h..1h x1")


def names(command: Command, app: str) -> list[str]:
    """Return the applications that bear some name of this test, as `apps` lists them."""
    rows = json.loads(command("apps", "--json")[1])["rows"]
    return [row["application"] for row in rows if app in row["application"]]


def test_a_name_goes_on_and_comes_back(lives: Lives, app: str, command: Command) -> None:
    kinesis, shown = filled(), [app, f"-x {app}", f"{app}/%2F", f"--to={app}", app]
    query = lives.begin(kinesis)
    query.batch(failing=[1])
    query.plan()
    for before, name in itertools.pairwise(shown):
        query.end()
        code, out, said = command("rename", "--yes", "--", before, name)
        assert code == 0, said
        assert f"{before} is called {name} now" in out
        assert names(command, app) == [name]
        # Only the newest name means something.
        code, _, said = command("status", "--", before)
        assert (code, f"was renamed to {name!r}" in said) == (1, True)
        with pytest.raises(RenamedError):
            lives.begin(kinesis, query.checkpoint, applicationName=before)
        kinesis.put(A, b"7")
        query = lives.begin(kinesis, query.checkpoint, applicationName=name)
        assert numbers(query.batch()) == [7]
        query.plan()
        status = json.loads(command("status", "--json", "--", name)[1])
        assert (status["application"], status["retrying"], status["run"]["ended"]) == (name, 1, None)
        (retrying,) = [one for one in status["findings"] if one["code"] == "retrying"]
        words = shlex.split(retrying["remedy"].removesuffix(" shows all reasons"))
        assert command(*words[1:])[0] == 0
    query.end()


def test_the_error_has_the_line_which_is_carried_out_where_it_is_printed(
    lives: Lives, app: str, command: Command
) -> None:
    kinesis = filled()
    query = lives.begin(kinesis)
    query.batch()
    query.plan()
    query.end()
    new = f"-{app} 'of' the shop"
    with pytest.raises(CheckpointMismatchError) as refused:
        lives.begin(kinesis, query.checkpoint, applicationName=new).plan()
    lives.end()
    line = str(refused.value).partition("run `")[2].partition("`")[0]
    code, _, said = command(*shlex.split(line)[1:-3], "--yes", *shlex.split(line)[-3:])
    assert code == 0, said
    kinesis.put(A, b"8")
    assert numbers(lives.begin(kinesis, query.checkpoint, applicationName=new).drain()) == [8]


def test_a_name_that_another_application_has_is_refused(lives: Lives, app: str, command: Command) -> None:
    other = f"{app}-other"
    lives.begin(filled()).batch()
    lives.begin(filled(), applicationName=other).batch()
    assert "is running" in command("rename", app, other, "--yes")[2]
    lives.end()
    code, _, said = command("rename", app, other, "--yes")
    assert (code, f"there is an application {other!r} already" in said) == (1, True)
    assert "is called" in command("rename", app, app, "--yes")[2]
    assert command("rename", app, f"{app}-new")[0] == 1
    assert names(command, app) == [app, other]


def test_a_run_that_is_connected_is_taken_over_only_where_that_is_said(
    lives: Lives, app: str, command: Command
) -> None:
    query = lives.begin(filled())
    query.batch()
    assert "--force" in command("rename", app, f"{app}-new", "--yes")[2]
    assert command("rename", app, f"{app}-new", "--yes", "--force")[0] == 0
    with pytest.raises(Exception, match="taken over"):
        query.plan()


def test_names_are_forgotten_with_the_application(
    lives: Lives, app: str, command: Command, tmp_path: Path
) -> None:
    kinesis = filled()
    lives.begin(kinesis).batch()
    lives.end()
    assert command("rename", app, f"{app}-new", "--yes")[0] == 0
    assert command("forget", f"{app}-new", "--yes", "--backup", str(tmp_path / "copy.jsonl"))[0] == 0
    assert names(command, app) == []
    # Each of them is free again, and another application.
    for name in (app, f"{app}-new"):
        assert len(lives.begin(kinesis, applicationName=name).batch()) == 3
    assert names(command, app) == [app, f"{app}-new"]
