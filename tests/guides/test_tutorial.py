"""docs/tutorial.md, done from its first command to its last; UPDATE_GUIDE=1 writes the real output into it."""

from __future__ import annotations

from pathlib import Path

from doc_page import ROOT, Page


def test_the_tutorial(tmp_path: Path) -> None:
    with Page(ROOT / "docs" / "tutorial.md", tmp_path) as page:
        page.check()
