"""README, docs and examples use public names only, and docs/api.md has all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import PAGES as PAGES_BY_NAME, blocks_of

from kinesis_trident import RecordPosition, ReliableSink, TopologyBuilder, TreeOutcome
from kinesis_trident.trident import TridentTopology

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PUBLIC = {
    name: import_module(name)
    for name in (
        "kinesis_trident",
        "kinesis_trident.errors",
        "kinesis_trident.decoders",
        "kinesis_trident.testing",
        "kinesis_trident.trident",
        "kinesis_trident.trident.maps",
    )
}
WORDS_MOST = 77811
"""Of all pages of docs/: what stands between spaces, in code and tables too, as `wc -w docs/*.md` counts it."""
PAGE_OF_NAMES = PAGES_BY_NAME["api.md"]
FOLDERS = "bolt|checkpoint|console|spout|tracker|trident"

by_name = pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)


def programs(path: Path) -> Iterator[str]:
    """Python with all imports of a file; of a page these alone, as its code may leave things out with `...`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield text
        return
    for block in re.findall(r"^```python\n(.*?)^```$|((?:^    .*\n)+)", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(
            r"^ *((?:from [\w.]+ )?import (?:\([^)]*\)|[^\n(]+))$", "\n".join(block), re.MULTILINE
        )


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import; the name is empty where the module itself is imported."""
    for program in programs(path):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom):
                yield from ((node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)


def test_the_pages_have_no_more_words_than_they_need() -> None:
    """What a page says costs each reader time: whoever adds words takes others out, or says why the ceiling rises."""
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in PAGES[1:])
    assert words <= WORDS_MOST


@by_name
def test_what_users_read_imports_public_names(path: Path) -> None:
    for module, name in imports(path):
        assert not re.match(rf"({FOLDERS})\b", module), f"{module} is no module of ours"
        if module.partition(".")[0] == "kinesis_trident":
            assert module in PUBLIC, f"{module} is private"
            assert not name or name in PUBLIC[module].__all__, f"{module} has no public {name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_prose_names_what_users_can_import(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # Options have such names too: `zookeeper.hosts`. Folders are written with a slash.
    assert re.findall(rf"`(?:{FOLDERS})\.[a-z_]\w*[^`]*`", text) == []
    for module, name in re.findall(r"`(kinesis_trident(?:\.[a-z]\w*)*?)\.(\w+)(?:\([^`]*)?`", text):
        public = f"{module}.{name}" in PUBLIC or (module in PUBLIC and name in PUBLIC[module].__all__)
        assert public, f"{module}.{name} is private"


def test_one_page_has_all_public_names_with_a_sentence_each() -> None:
    """The errors have theirs in the runbook."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `([\w.]+)`$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == PUBLIC.keys()
    for name, section in sections.items():
        rows = re.findall(r"^- `(\w+)`: (.*)$", section, re.MULTILINE)
        errors = re.findall(r"`(\w+)`", section.partition("\nErrors: ")[2])
        assert sorted([*(row[0] for row in rows), *errors]) == PUBLIC[name].__all__
        assert [one for one in errors if not issubclass(getattr(PUBLIC[name], one), Exception)] == []
        for one, sentence in rows:
            assert re.fullmatch(r"\S.*[^.]\.", sentence), one
            assert ". " not in sentence, one


def test_the_trackers_are_used_by_hand_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks_of(PAGE_OF_NAMES):
        if block.kind == "python":
            exec(block.text, names)
    assert capsys.readouterr().out == "record 99 was emitted after 101:1, which comes later in the shard\n"
    assert (names["will_retry"], names["safe"], names["due"]) == (True, names["first"], names["second"])
    assert names["tracker"].checkpoint == names["third"]
    assert (names["outcome"], names["failed"]) == (TreeOutcome.ACKED, TreeOutcome.FAILED)
    assert names["late"] == [3]
    stubborn, position = names["stubborn"], RecordPosition(5)
    stubborn.emit(position)
    for now in range(50):
        assert stubborn.fail(position, now, "no", names["rng"])
        assert stubborn.next_retry(now) == position
        stubborn.emit(position, retry=True)
        assert stubborn.next_retry(now) is None
    assert stubborn.ack(position)
    assert stubborn.checkpoint == position


@pytest.mark.parametrize("builder", [ReliableSink, TopologyBuilder, TridentTopology])
def test_all_that_runs_is_started_alike(builder: type[Any]) -> None:
    parameters = list(signature(builder.start).parameters.values())[1:]
    names = ["checkpointLocation", "queryName", "trigger", "batch_retries"]
    assert [one.name for one in parameters[:4]] == names
    assert [one.default for one in parameters[:4]] == [Parameter.empty, None, None, 3]
    assert {one.kind for one in parameters} == {Parameter.KEYWORD_ONLY}
