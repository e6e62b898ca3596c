"""Each code block of the pages is run by a test, or checked here as far as a part of a program can be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from doc_blocks import (
    PAGES,
    ROOT,
    Block,
    blocks_of,
    check_commands,
    check_json,
    check_python,
    check_yaml,
)

GUIDES = "guides/test_guides.py"
EXPLAINING = "guides/test_pages.py"


def check_shown(block: Block) -> None:
    """Nothing but text, such as a line of a log."""
    assert block.kind in {"", "text"}, f"{block}: run it, or check it"
    assert not block.commands, f"{block}: it has commands"


def check_image(block: Block) -> None:
    """The instructions of a Dockerfile."""
    words = {line.split()[0] for line in block.text.splitlines() if not line.startswith("#")}
    assert words <= {"FROM", "USER", "COPY", "RUN"}, str(block)


REST = 0
"""All others of a page, where another test counts them."""

Way = str | Callable[[Block], None]

# Of each page its blocks in their order, with how often: a file of tests that runs them, or a check.
WAYS: dict[str, list[tuple[int, Way]]] = {
    "README.md": [(1, check_commands), (2, "test_readme.py")],
    "CONTRIBUTING.md": [(3, check_commands)],
    "acks.md": [(3, EXPLAINING)],
    "api.md": [(4, "test_public_pages.py")],
    "backfill.md": [(4, GUIDES)],
    "checkpoints.md": [(6, GUIDES)],
    "conftest.md": [(3, "guides/test_conftest_page.py"), (1, check_shown), (1, check_yaml)],
    "console.md": [
        (1, EXPLAINING),
        (1, check_commands),
        (2, EXPLAINING),
        (1, check_commands),
        (1, EXPLAINING),
        (2, check_commands),
        (1, check_shown),
    ],
    "aws-records.md": [(6, "e2e/test_aws_records.py")],
    "deploying.md": [(2, EXPLAINING), (1, check_commands), (1, check_shown), (1, check_commands)],
    "examples.md": [(2, check_commands), (1, "e2e/test_demo.py")],
    "fan-out.md": [(1, EXPLAINING), (1, check_commands), (1, EXPLAINING), (2, check_json)],
    "functions.md": [(3, "test_readme.py")],
    "http.md": [(1, "e2e/test_http.py")],
    "index.md": [(1, check_commands), (1, check_python)],
    "joins.md": [(2, "e2e/test_joins.py")],
    "metrics.md": [
        (2, check_commands),
        (1, check_yaml),
        (2, check_python),
        (1, check_commands),
        (1, check_python),
    ],
    "moving.md": [(4, "console/moving/test_moving_guide.py"), (2, check_python)],
    "new-column.md": [(1, "guides/test_table_pages.py")],
    "platforms.md": [
        (1, check_commands),
        (1, check_image),
        (2, check_commands),
        (1, check_json),
        (2, check_commands),
    ],
    "positions.md": [(3, EXPLAINING)],
    "recipes.md": [(8, "e2e/test_recipes.py")],
    "reliability.md": [(2, check_commands)],
    "resharding.md": [(4, GUIDES)],
    "retries.md": [(1, check_python), (1, check_json), (3, EXPLAINING)],
    "runbook.md": [(1, check_commands), (REST, "runbook/test_runbook_page.py")],
    "schema-registry.md": [(1, "e2e/test_schema_registry.py")],
    "security.md": [(3, GUIDES)],
    "sinks.md": [(6, "test_sinks.py")],
    "several-streams.md": [(2, GUIDES)],
    "sums-per-day.md": [(3, "guides/test_table_pages.py")],
    "states.md": [(5, "trident/test_states_doc.py")],
    "spark.md": [(4, "e2e/test_spark_ways.py")],
    "storm.md": [(11, "e2e/test_storm_docs.py")],
    "storm-parts.md": [(2, "trident/test_bolts_on_states.py")],
    "testing.md": [
        (1, EXPLAINING),
        (4, "trident/testing/test_without_java.py"),
        (1, "spout/test_query_by_hand.py"),
        (1, EXPLAINING),
    ],
    "trident.md": [(1, "e2e/test_trident_document.py"), (1, "trident/test_windows_doc.py")],
    "trident-state.md": [(9, "e2e/test_trident_document.py")],
    "tutorial.md": [(1, check_commands), (21, "guides/test_tutorial.py")],
    "watermarks.md": [(2, "e2e/test_watermark.py")],
    "writing.md": [(2, EXPLAINING), (1, check_python)],
    "zookeeper.md": [
        (3, check_json),
        (2, EXPLAINING),
        (1, check_commands),
        (1, "spout/test_many_failures.py"),
        (1, check_json),
        (1, EXPLAINING),
    ],
}


def ways(page: str) -> list[Way]:
    found = WAYS.get(page, [])
    known = sum(count for count, _ in found)
    rest = len(list(blocks_of(PAGES[page]))) - known
    return [way for count, way in found for _ in range(count or rest)]


@pytest.mark.parametrize("page", PAGES)
def test_each_block_has_its_way(page: str) -> None:
    blocks = list(blocks_of(PAGES[page]))
    lines = ", ".join(str(block.line) for block in blocks)
    assert len(blocks) == len(ways(page)), (
        f"{page} has blocks in the lines {lines}: say in WAYS which test runs each of them"
    )
    for block, way in zip(blocks, ways(page), strict=True):
        if callable(way):
            way(block)
        else:
            text = (ROOT / "tests" / way).read_text(encoding="utf-8")
            stem = re.escape(page.removesuffix(".md"))
            assert re.search(rf"\b{stem}\b", text), f"{block}: {way} does not name the page"


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_of_all_blocks_exist(page: str) -> None:
    for block in blocks_of(PAGES[page]):
        if block.commands:
            check_commands(block)
        if block.kind == "python":
            check_python(block)
        if block.kind == "json":
            check_json(block)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (check_commands, "$ kinesis-trident chekpoints orders"),
        (check_commands, "$ kinesis-trident checkpoints orders --zookeper zk1:2181"),
        (check_commands, "$ kinesis-trident tail"),
        (check_commands, "$ make tests"),
        (check_commands, "$ pip install 'kinesis-trident[redes]'"),
        (check_commands, "$ python examples/nothing.py"),
        (check_commands, "$ aws kinesis deregister-stream-consumer --consumer billing"),
        (check_commands, "$ unheard-of --help"),
        (check_python, 'spark.read.option("streamNam", "orders")'),
        (check_python, 'KinesisSpout(streamName="a", zookeeper__host="b")'),
        (check_python, "a = = b"),
        (check_json, '{"a": 1,, "b": ...}'),
        (check_yaml, "a: [1"),
    ],
)
def test_what_is_wrong_in_a_block_is_found(check: Callable[[Block], None], text: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        check(Block("page.md", 1, "console" if check is check_commands else "python", text))


def test_every_way_is_needed() -> None:
    assert set(WAYS) <= set(PAGES)
    assert Counter(way for page in WAYS for way in ways(page))[check_shown] <= 3
