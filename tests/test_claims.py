"""Each promise of `claims.py` stands in its page, and its tests are there."""

from __future__ import annotations

import re
from pathlib import Path

from claims import CLAIMS, UNHELD
from doc_tables import CLAIMS_TABLE, UNHELD_TABLE
from test_guarantees import names_in

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_each_promise_stands_in_its_page() -> None:
    for page, words, _ in (*CLAIMS, *UNHELD):
        text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
        assert words in text, f"{page} does not say: {words}"


def test_the_tests_of_the_promises_are_there() -> None:
    for page, words, tests in CLAIMS:
        for test in tests.split("|"):
            file, _, name = test.strip().partition(" ")
            assert re.fullmatch(r"\w+", name), f"{page}, {words}: name a test of {file}"
            assert any(one.startswith(name) for one in names_in(file)), (
                f"{page}, {words}: there is no {test.strip()}"
            )


def test_the_page_of_promises_is_the_table() -> None:
    assert CLAIMS_TABLE.read() == CLAIMS_TABLE.render()
    assert UNHELD_TABLE.read() == UNHELD_TABLE.render()
