"""The Python of the pages passes `mypy --strict`, but for annotations of functions: names and arguments fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import PAGES, blocks_of
from doc_page import ROOT

LEFT_OUT = {
    # A block goes on from those before it: their names, and classes of theirs, are known to nobody here.
    "misc",
    "name-defined",
    # The `prepare` of a `StatefulBolt` gets its state too.
    "override",
}


def test_mypy_finds_nothing_in_the_pages(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    programs = [block for path in PAGES.values() for block in blocks_of(path) if block.kind == "python"]
    assert len(programs) > 80
    for block in programs:
        name = re.sub(r"\W", "_", str(block))
        # A line of the page is the same line of the module.
        (tmp_path / f"{name}.py").write_text("\n" * block.line + block.text + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    command += ["--allow-untyped-defs", "--allow-untyped-calls", "--allow-untyped-decorators"]
    command += [
        "--ignore-missing-imports",
        *(f"--disable-error-code={code}" for code in sorted(LEFT_OUT)),
        ".",
    ]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
