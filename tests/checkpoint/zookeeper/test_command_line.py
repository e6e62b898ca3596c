"""Test the command lines that are recommended: a copy of one asks the same ZooKeeper."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings, strategies as st

from kinesis_trident.checkpoint.zookeeper.client import Sasl, ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.command_line import DEFAULT_ROOT, command_line
from kinesis_trident.checkpoint.zookeeper.tls import Tls
from kinesis_trident.console.cli import app

VARIABLES = (
    "KINESIS_TRIDENT_ZOOKEEPER",
    "KINESIS_TRIDENT_ZOOKEEPER_DIGEST",
    "KINESIS_TRIDENT_ZOOKEEPER_SASL",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("config", "root", "line"),
    [
        (ZooKeeperConfig("h:1"), DEFAULT_ROOT, "kinesis-trident status 'bob'\"'\"'s job' --zookeeper h:1"),
        (
            ZooKeeperConfig("a:1,b:2/c d", 5, Tls("ca.pem", "my cert", "key", check_hostname=False)),
            "/my root",
            "kinesis-trident --tls-ca ca.pem --tls-cert 'my cert' --tls-key key --no-tls-check-hostname "
            "status 'bob'\"'\"'s job' --zookeeper 'a:1,b:2/c d' --root '/my root'",
        ),
        (
            ZooKeeperConfig("h:1", 5, Tls(verify=False), Sasl("user", "s3cret", "GSSAPI"), "bob:s3cret"),
            DEFAULT_ROOT,
            "kinesis-trident --digest bob:PASSWORD --sasl user:PASSWORD --sasl-mechanism GSSAPI --no-tls-verify "
            "status 'bob'\"'\"'s job' --zookeeper h:1",
        ),
        (ZooKeeperConfig(""), DEFAULT_ROOT, "kinesis-trident status 'bob'\"'\"'s job'"),
    ],
)
def test_a_line_has_the_options_that_lead_there(config: ZooKeeperConfig, root: str, line: str) -> None:
    assert command_line(config, root, "status", "bob's job") == line


def test_the_environment_takes_the_place_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ZooKeeperConfig("h:1", sasl=Sasl("user", "s3cret"), digest="bob:s3cret")
    for name, value in zip(VARIABLES, ("h:1", "bob:s3cret", "user:s3cret"), strict=True):
        monkeypatch.setenv(name, value)
    assert command_line(config, DEFAULT_ROOT, "apps") == "kinesis-trident apps"
    other = ZooKeeperConfig("h:2", digest="eve:s3cret")
    assert shlex.split(command_line(other, DEFAULT_ROOT, "apps"))[1:] == [
        *("--digest", "eve:PASSWORD", "apps", "--zookeeper", "h:2")
    ]


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
IDS = ["-s/shardId-1:5", "s/shardId-1:6"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    NAMES.map("-{}".format) | st.just("x"),
    st.sampled_from(
        [
            (["retries"], [], {}),
            (["dead-letters", "replay"], ["--all"], {"every": True}),
            (["dead-letters", "cancel", *IDS], [], {"message_ids": IDS}),
            (["checkpoints", "set", "LATEST"], ["--stream", "-s"], {"text": "LATEST", "stream": "-s"}),
        ]
    ),
)
def test_an_application_of_any_name_is_taken_for_no_option(
    name: str, line: tuple[list[str], list[str], dict[str, object]]
) -> None:
    (command, *words), options, expected = line
    config = ZooKeeperConfig("h:1", digest="bob:s3cret")
    said = shlex.split(command_line(config, "/r", command, name, *words, options=options))
    assert said[:4] == ["kinesis-trident", "--digest", "bob:PASSWORD", command]
    group: Any = typer.main.get_group(app)
    context = group.make_context("kinesis-trident", said[1:])
    while hasattr(group, "resolve_command"):
        found, group, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        context = group.make_context(found, rest, parent=context)
    assert context.command_path.split() == ["kinesis-trident", command, *(words or ["reasons"])[:1]]
    parsed = context.params
    assert expected.items() <= parsed.items()
    assert (parsed["application"], parsed["zookeeper"], parsed["root"]) == (name, "h:1", "/r")
