"""docs/tutorial.md, done from its first command to its last; UPDATE_GUIDE=1 writes the real output into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_page import ROOT, Page


@pytest.mark.long
def test_the_tutorial(tmp_path: Path) -> None:
    """The other pages are run by test_guides.py and test_pages.py; the demo kills a job, as this one is."""
    with Page(ROOT / "docs" / "tutorial.md", tmp_path) as page:
        page.check()
