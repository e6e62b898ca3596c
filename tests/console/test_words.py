"""The words of a command in the orders in which people type them: each means the same, and names may be anything."""

from __future__ import annotations

import re

import pytest
from command_line import Command
from hypothesis import given, strategies as st

from kinesis_trident.console.cli import app
from kinesis_trident.console.commands.words import action_first, arrange

KNOWN = {"--timeout": 1, "--digest": 1, "--tls-verify": 0}
OWN = {"--all": 0, "--stream": 1, "--json": 0, "-y": 0, "--zookeeper": 1, "--root": 1}
ACTIONS = ("list", "show", "replay", "cancel", "export", "set", "now")
names = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: not name.startswith("-"))


@given(
    name=names.filter(lambda name: name not in ACTIONS),
    login=st.lists(
        st.sampled_from([["--timeout", "5"], ["--timeout=5"], ["--digest", "a:b"], ["--tls-verify"]])
    ),
    options=st.lists(st.sampled_from([["--all"], ["--stream", "orders"], ["--json"]]), unique_by=tuple),
    zookeeper=st.sampled_from([[], ["--zookeeper", "a:1"], ["--root=/r"]]),
    data=st.data(),
)
def test_each_order_is_the_same(
    name: str, login: list[list[str]], options: list[list[str]], zookeeper: list[str], data: st.DataObject
) -> None:
    before = data.draw(st.lists(st.sampled_from([True, False]), min_size=len(login), max_size=len(login)))
    early = [word for one, is_early in zip(login, before, strict=True) if is_early for word in one]
    late = [word for one, is_early in zip(login, before, strict=True) if not is_early for word in one]
    parts = st.tuples(st.integers(0, len(options)), st.integers(0, len(options))).map(sorted)
    first, second = data.draw(parts)
    cuts = (options[:first], options[first:second], options[second:])
    one, two, three = ([word for option in cut for word in option] for cut in cuts)
    for order in ([*one, name, *two, "replay", *three], [*one, "replay", *two, name, *three]):
        arranged = arrange([*early, *zookeeper, "dead-letters", *order, *late], KNOWN)
        assert arranged == [*early, *late, "dead-letters", *zookeeper, *order]
        meant = ["replay", *zookeeper, *one, *(word for word in order[len(one) :] if word != "replay")]
        assert action_first([*zookeeper, *order], ACTIONS, OWN) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("replay", "list replay"),
        ("", "list"),
        ("orders --all", "list orders --all"),
        ("replay list", "list replay"),
        ("replay replay --all", "replay replay --all"),
        ("replay -h", "replay -h"),
        ("--help cancel", "cancel --help"),
        ("orders --help", "list orders --help"),
        ("--help", "--help"),
        ("now -- -x", "now -- -x"),
        ("-- -x", "list -- -x"),
        ("--stream replay replay orders", "replay --stream replay orders"),
        ("--json replay -y -- -x", "replay --json -y -- -x"),
        ("--json -- -x now -h", "now --json -- -x -h"),
        ("--stream", "list --stream"),
        ("set orders 5", "set orders 5"),
        ("orders set 5", "set orders 5"),
    ],
)
def test_the_action_comes_first(typed: str, meant: str) -> None:
    assert action_first(typed.split(), ACTIONS, OWN) == meant.split()


@pytest.mark.parametrize(
    "words", ["status -- --timeout", "kinesis --timeout 5 -- -h", "--nothing status a", "--zookeeper a:1", ""]
)
def test_names_and_words_of_others_stay(words: str) -> None:
    assert arrange(words.split(), KNOWN, {"kinesis"}) == words.split()


OPTIONS_OF = {
    "dead-letters list": "--json --limit --shard --watch",
    "dead-letters show": "--endpoint --from --json --option --region --shard --yes",
    "dead-letters replay": "--again --all --endpoint --exhausted --from --json --limit --option --reason --region "
    "--shard --since --yes",
    "dead-letters cancel": "--all --json --shard",
    "dead-letters export": "--endpoint --from --json --limit --option --region --shard --to --yes",
    "dead-letters compact": "--from --json",
    "retries reasons": "--json --limit --shard --watch",
    "retries list": "--json --limit --shard --watch",
    "retries now": "--all --json --limit --reason --shard",
    "checkpoints show": "--json --limit --shard --watch",
    "checkpoints set": "--endpoint --force --json --option --region --shard --yes",
    "checkpoints export": "--json --shard",
    "checkpoints import": "--force --json --shard --yes",
    "checkpoints backups": "--json --shard",
    "checkpoints abandon-batch": "--dead-letter --force --json --shard --yes",
}


@pytest.mark.parametrize("action", OPTIONS_OF)
def test_an_action_has_its_own_help_with_its_options_alone(action: str, command: Command) -> None:
    code, out, _ = command(*action.split(), "--help")
    assert (code, f"{action} [OPTIONS] APP" in re.sub("[{}]", "", out)) == (0, True), out
    options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", out, re.MULTILINE))
    assert options == {*OPTIONS_OF[action].split(), "--zookeeper", "--root", "--stream", "--help"}
    command_name, name = action.split()
    assert command(command_name, "orders", name, "-h")[:2] == (0, out)


@pytest.mark.parametrize("name", ["dead-letters", "retries", "checkpoints"])
def test_a_command_lists_its_actions(name: str, command: Command) -> None:
    code, out, _ = command(name, "--help")
    listed = re.findall(r"^  ([a-z-]+)  ", out.partition("Commands:")[2], re.MULTILINE)
    assert (code, listed) == (0, [one.split()[1] for one in OPTIONS_OF if one.startswith(f"{name} ")])


@pytest.mark.parametrize(
    ("typed", "found"), [("dead-letters re", ["replay"]), ("checkpoints ab", ["abandon-batch"])]
)
def test_a_shell_completes_actions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, found: list[str]
) -> None:
    monkeypatch.setenv("_KINESIS_TRIDENT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"kinesis-trident {typed}")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        app(prog_name="kinesis-trident")
    assert capsys.readouterr().out.split() == found


@pytest.mark.parametrize("words", [["-h"], ["status", "-h"], ["dead-letters", "--help"]])
def test_help_has_a_short_name(words: list[str], command: Command) -> None:
    code, out, _ = command(*words)
    assert (code, "Usage: " in out) == (0, True)


def test_a_login_stands_on_either_side(command: Command) -> None:
    for words in (["--timeout", "0.5", "status", "nobody"], ["status", "nobody", "--timeout", "0.5"]):
        code, _, said = command(*words)
        assert (code, "--timeout" in said) == (1, False), said
    code, _, said = command("--zookeeper", "127.0.0.1:1", "status", "nobody", "--timeout=0.2")
    assert (code, "127.0.0.1:1" in said) == (1, True), said
