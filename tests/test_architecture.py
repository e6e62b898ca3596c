"""The page for who carries it on names what the code does: who writes what, and the files of each change."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doc_tables import (
    CAUSES_TABLE,
    CODE_TABLES,
    FATES_TABLE,
    NODES_TABLE,
    RULES_TABLE,
    STANDINGS_TABLE,
    DocTable,
    code_table,
)

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = {
    "an option": 6,
    "a field to a node": 5,
    "a node that people write": 9,
    "a store": 6,
    "a command": 5,
    "a finding": 4,
    "a figure": 6,
    "a record": 3,
}
READ = frozenset(
    [
        "trident/stores/bytestore.py",
        "trident/errors.py",
        "trident/testing/conformance.py",
        "console/snapshot.py",
        "console/changes.py",
        "console/commands/application_options.py",
        "console/views.py",
        "spout/options/modes.py",
        "spout/options/rules.py",
    ]
)
"""What is read for a change, or changed in a few cases only."""


@pytest.mark.parametrize("name", CODE_TABLES)
def test_a_table_is_what_the_code_does(name: str) -> None:
    table = code_table(name)
    assert table.read() == table.render()


@pytest.mark.parametrize("table", [CAUSES_TABLE, STANDINGS_TABLE, NODES_TABLE, FATES_TABLE])
def test_causes_of_a_standing_and_nodes_are_as_in_the_code(table: DocTable) -> None:
    assert table.read() == table.render()


def test_the_rules_of_a_choice_are_as_in_the_code() -> None:
    assert RULES_TABLE.read() == RULES_TABLE.render()


def test_each_value_of_the_page_is_a_class_of_the_module_beside_it() -> None:
    rows = re.search(r"<!-- values: .*?-->\n(.*?)<!-- end of values -->", TEXT, re.DOTALL)
    assert rows is not None
    values = [line.split(" | ") for line in rows[1].splitlines()[2:]]
    assert len(values) == 13
    for names, _, modules, _ in values:
        found = [(ROOT / module).read_text(encoding="utf-8") for module in re.findall(r"`(.*?)`", modules)]
        for name in re.findall(r"`(\w+)`", names):
            assert sum(bool(re.search(rf"^class {name}\b", text, re.MULTILINE)) for text in found) == 1, name


def test_the_modules_that_know_of_pauses_are_those_of_the_recorded_change() -> None:
    """Another one that has to know of them shows here, and so does a number that is not theirs."""
    table = re.search(r"<!-- pause: .*?-->\n(.*?)<!-- end of pause -->", TEXT, re.DOTALL)
    assert table is not None
    recorded = re.findall(r"`(\w+/[\w/]+\.py)`", table[1])
    assert len(recorded) == len(set(recorded))
    assert f"has touched {len(recorded)} modules of the product" in TEXT
    knowing = set()
    for folder in ("spout", "checkpoint", "console", "tracker", "bolt", "trident"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            named = {
                name
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                for name in (getattr(node, key, None) for key in ("id", "attr", "name", "arg", "module"))
                if isinstance(name, str)
            }
            # That of a loop which asks again and again is another pause.
            if any("paus" in name.lower() for name in named - {"_PAUSE"}):
                knowing.add(str(path.relative_to(ROOT)))
    assert len(knowing) > 15
    assert knowing <= set(recorded)


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[\w.]*)`", TEXT)
    assert len(named) > 30
    assert [one for one in named if not (ROOT / one).exists()] == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_newcomer_touches_few_files(change: str) -> None:
    """With its tests and pages."""
    titles = "Add " + change, "Change when " + change
    section = next(part for part in TEXT.split("\n## ") if part.startswith(titles))
    files = set(re.findall(r"`((?:[a-z_]+/)*\w+\.(?:py|md|toml))`", section)) - READ
    assert len(files) <= CHANGES[change], sorted(files)


def test_the_page_counts_the_files_of_a_recorded_change() -> None:
    rows = [
        line.split(" | ")
        for line in code_table("files of failures that no retry can mend").read().splitlines()[2:]
    ]
    section = TEXT.partition("## A change as it was: failures that no retry can mend")[2].partition("\n## ")[
        0
    ]
    counted = re.search(r"names that it brought: (\d+) of the product", " ".join(section.split()))
    assert counted is not None
    assert int(counted[1]) == sum(int(row[1]) for row in rows)
