"""Test that what pages say of other systems, or of measurements, has a source."""

from __future__ import annotations

import re

from doc_page import ROOT

from benchmarks.quotes import refreshed

DOCS = ROOT / "docs"


def text_of(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def test_each_line_about_another_system_links_what_says_it() -> None:
    questions, _, advice = text_of("comparison").partition("## Take something else when")
    tables = [
        re.findall(r"^\| (.+?) \| (.+) \|$", part, re.MULTILINE) for part in questions.split("\n## ")[1:]
    ]
    assert len(tables) > 5
    for (ours, said), *others in tables:
        assert ours == "Kinesis-Trident"
        assert re.search(r"\]\([a-z-]+\.md", said), said
        assert others
        for system, cell in others:
            links = re.findall(r"\]\((https://[^)]+)\)", cell)
            assert links or cell in {"another model", "has no micro-batches"}, f"{system}: {cell}"
    for link in re.findall(r"\]\((https://[^)]+)\)", questions + advice):
        # What it leads to stays as it is: a file of a commit, or a change that was made.
        assert "github.com" not in link or re.search(r"/blob/[0-9a-f]{40}/|/pull/\d+$", link), link


def test_quoted_figures_are_those_of_the_benchmarks() -> None:
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert refreshed(text, text_of("benchmarks/figures")) == text, (
            f"{page.name}: run benchmarks.quotes.refresh_pages"
        )


def test_sizing_quotes_each_figure_it_measures() -> None:
    text = text_of("sizing")
    assert text.count("](benchmarks/figures.md#") > 20
    prose = re.sub(r"\[[^\]]*\]\([^)]*\)", "", re.sub(r'"[^"]*"\)', ")", text))
    # Sums of the page itself, options' defaults and limits of Kinesis and of the planning process.
    allowed = {"2 MB", "10 MiB", "64 MiB", "128 MiB", "256 MB", "4 MiB", "200 B", "1024 B", "10 seconds"}
    figures = set(re.findall(r"[\d,.]*\d (?:k|[KMG]i?B|B|ms|seconds|requests)\b", prose))
    assert figures <= allowed, figures - allowed
