"""The words of a command in the orders in which people type them: each means the same, and names may be anything."""

from __future__ import annotations

import pytest
from command_line import Command
from hypothesis import given, strategies as st

from kinesis_trident.console.commands.words import arrange

KNOWN = {"--timeout": 1, "--digest": 1, "--tls-verify": 0}
OWN = {name: {"--all": 0, "--stream": 1, "--json": 0, "-y": 0} for name in ("dead-letters", "retries")}
names = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: not name.startswith("-"))


@given(
    name=names.filter(lambda name: name not in ("list", "replay", "show", "cancel", "export", "compact")),
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
    orders = ([*one, name, *two, "replay", *three], [*one, "replay", *two, name, *three])
    meant = ([*one, name, *two, "replay", *three], [*one, *two, name, "replay", *three])
    for order, words in zip(orders, meant, strict=True):
        expected = [*early, *late, "dead-letters", *zookeeper, *words]
        assert arrange([*early, *zookeeper, "dead-letters", *order, *late], KNOWN, OWN) == expected


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dead-letters replay", "dead-letters replay"),
        ("dead-letters replay list", "dead-letters replay list"),
        ("dead-letters replay --all", "dead-letters replay --all"),
        ("retries now -- -x", "retries -- -x now"),
        ("status -- --timeout", "status -- --timeout"),
        ("dead-letters --stream replay replay orders", "dead-letters --stream replay orders replay"),
        ("dead-letters --json replay -y -- -x", "dead-letters --json -y -- -x replay"),
        ("dead-letters --stream", "dead-letters --stream"),
        ("checkpoints set orders 5", "checkpoints orders set 5"),
        ("kinesis --timeout 5 -- -h", "kinesis --timeout 5 -- -h"),
        ("--nothing status a", "--nothing status a"),
        ("--zookeeper a:1", "--zookeeper a:1"),
        ("", ""),
    ],
)
def test_names_and_words_of_others_stay(typed: str, meant: str) -> None:
    assert arrange(typed.split(), KNOWN, OWN, {"kinesis"}) == meant.split()


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
