"""What UPDATE_GUIDE=1 writes into a page: what differs, as the check compares, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_page import Page

PAGE = """Reading takes a while:

```console
$ echo "read 7 records in 3 ms at 2026-03-01T10:00:00Z"
read 7 records in 9 ms at 2026-02-03T04:05:06Z
$ echo "wrote 8 records"
wrote 9 records
$ echo "ended after 2 s"
ended after 4 s
```
"""


def test_only_what_differs_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    monkeypatch.delenv("UPDATE_GUIDE", raising=False)
    with Page(path, tmp_path) as page, pytest.raises(AssertionError, match="wrote 9 records"):
        page.check()
    assert path.read_text() == PAGE
    monkeypatch.setenv("UPDATE_GUIDE", "1")
    with Page(path, tmp_path) as page:
        page.check()
    assert path.read_text() == PAGE.replace("wrote 9 records", "wrote 8 records")
