"""The runbook as a whole: an entry for every error and every banner, a scenario for each entry, and its contents."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import sys
from collections import Counter
from importlib import import_module

from night import PAGE, UNTRIED, UNTRIED_WORDS, read_page, scenarios, sentences

import kinesis_trident
from kinesis_trident import KinesisTridentError, errors as public_errors, trident
from kinesis_trident.bolt.errors import BoltError
from kinesis_trident.console.rules import RULES
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.kinesis import Unavailable
from kinesis_trident.tracker.errors import PermanentFailure, RecordFailure, RetryLater, TrackerError
from kinesis_trident.trident.errors import TridentError

ROOTS = {KinesisTridentError, BoltError, SpoutError, TrackerError, TridentError, RecordFailure}
"""Never raised themselves."""

OF_CODE = {PermanentFailure, RetryLater}
"""Raised by code of users alone: they say what a failure of a record means, and docs/retries.md says what follows."""

INTERNAL = {
    "kinesis_trident.checkpoint.zookeeper.operations.Refused",
    "kinesis_trident.common.folder.FolderError",
    "kinesis_trident.common.folder.NoFileError",
    "kinesis_trident.common.folder.NoFolderError",
    "kinesis_trident.spout.kinesis.KeyAwayError",
    "kinesis_trident.spout.testing.server.SeveredError",
    "kinesis_trident.spout.testing.tokens.RefusedError",
    "kinesis_trident.trident.stores.memcached.connection.IncompleteError",
    "kinesis_trident.trident.stores.memcached.connection.MemcachedError",
}
"""Always caught by the module above the one that raises them."""


def errors() -> set[type[KinesisTridentError]]:
    """The public error classes: those that their own modules name in `__all__`, where they have one."""
    found = set()
    for one in pkgutil.walk_packages(kinesis_trident.__path__, f"{kinesis_trident.__name__}."):
        for name, value in vars(import_module(one.name)).items():
            if (
                inspect.isclass(value)
                and issubclass(value, KinesisTridentError)
                and name in getattr(sys.modules[value.__module__], "__all__", (value.__name__,))
            ):
                found.add(value)
    return found


APART = {Unavailable: "kinesis.Unavailable"}
"""The headings of classes whose names stand for another error, or banner, too."""


OF_SPARK = {"EOFException", "SparkException"}
"""The headings of errors of Spark's own."""


OF_USERS = {"An exception of your own code"}
"""The heading of what is no error of ours."""


def title_of(error: type[KinesisTridentError]) -> str:
    return APART.get(error, error.__name__)


def test_every_error_and_every_banner_has_an_entry_and_no_entry_is_of_anything_else() -> None:
    known = errors()
    assert {f"{one.__module__}.{one.__name__}" for one in known} >= INTERNAL
    seen = {one for one in known - ROOTS - OF_CODE if f"{one.__module__}.{one.__name__}" not in INTERNAL}
    wanted = Counter([*map(title_of, seen), *(rule.code for rule in RULES), *OF_SPARK, *OF_USERS])
    assert max(wanted.values()) == 1
    assert read_page(PAGE.read_text(encoding="utf-8")).keys() == wanted.keys()


def test_every_error_of_a_query_is_public() -> None:
    """Those of the command line, and of helpers that users call themselves, stand with these."""
    public = {*public_errors.__all__, *trident.__all__, *kinesis_trident.__all__}
    known = {one for one in errors() - ROOTS if f"{one.__module__}.{one.__name__}" not in INTERNAL}
    assert {one.__name__ for one in known} - public == {
        *("BackoffError", "ConsoleError", "JavaMissingError", "UnknownRunError")
    }


def test_every_entry_has_one_scenario_and_each_way_out_is_tried_or_excused() -> None:
    entries = read_page(PAGE.read_text(encoding="utf-8"))
    assert Counter(title for title, _ in scenarios()) == Counter(list(entries))
    assert UNTRIED.keys() <= entries.keys()


def test_each_option_and_command_that_an_entry_recommends_is_tried_or_excused() -> None:
    entries = read_page(PAGE.read_text(encoding="utf-8"))
    for title, tried in scenarios():
        remedy = entries[title].remedy
        excused = UNTRIED_WORDS.get(title, {})
        assert [words for words in excused if words not in remedy or words in tried] == []
        named = [one for one in sentences(remedy) if "`" in one and title not in UNTRIED]
        untried = [one for one in named if not any(words in one for words in (*tried, *excused))]
        assert untried == [], title
    assert UNTRIED_WORDS.keys() <= entries.keys() - UNTRIED.keys()


def test_the_contents_name_every_entry_in_the_order_of_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    parts: dict[str, list[str]] = {}
    for one in read_page(text).values():
        parts.setdefault(one.part, []).append(f"[{one.title}](#{_anchor(one.title)})")
    rows = [f"| [{part}](#{_anchor(part)}) | {', '.join(links)} |\n" for part, links in parts.items()]
    table = "| what you see | entries |\n|---|---|\n" + "".join(rows)
    before, heading, rest = text.partition("## Contents\n\n")
    assert heading
    kept = rest[rest.index("## ") :]
    if os.environ.get("RUNBOOK") == "write":
        PAGE.write_text(f"{before}{heading}{table}\n{kept}", encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == f"{before}{heading}{table}\n{kept}"


def test_links_within_the_page_lead_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    anchors = [_anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    assert max(Counter(anchors).values()) == 1
    assert {target for target in re.findall(r"\]\(#([^)]*)\)", text) if target not in anchors} == set()


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
