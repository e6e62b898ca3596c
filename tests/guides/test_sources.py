"""Test that what pages say of other systems, or of measurements, has a source."""

from __future__ import annotations

import re

from doc_page import ROOT

DOCS = ROOT / "docs"


def text_of(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def test_each_cell_about_another_system_links_the_lines_that_say_it() -> None:
    header, _, *rows = re.findall(r"^\| (.*) \|$", text_of("comparison").split("\n## ")[0], re.MULTILINE)
    assert len(rows) > 5
    for row in rows:
        name, ours, *others = row.split(" | ")
        assert len(others) == len(header.split(" | ")) - 2, name
        assert re.search(r"\]\([a-z-]+\.md", ours), name
        for cell in others:
            links = re.findall(r"\]\((https://[^)]+)\)", cell)
            assert links or cell in {"not checked", "another model", "has no micro-batches"}, (
                f"{name}: {cell}"
            )
            for link in links:
                assert "github.com" not in link or re.search(r"/blob/[0-9a-f]{40}/", link), link


def test_the_figures_of_sizing_are_those_of_the_benchmarks() -> None:
    measured = set(re.findall(r"\d[\d,.]*\d|\d", text_of("benchmarks")))
    figures = re.findall(r"([\d,.]*\d) (k/s|MiB/s|[KM]iB|ms|k updates|requests)\b", text_of("sizing"))
    assert len(figures) > 20
    # The default of an option, and the sum that the page makes of it.
    assert {figure for figure, _ in figures if figure not in measured} <= {"128", "1416"}
