"""The checks of what is installed in one clean environment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from release import imports
from release.archives import NAME
from release.matrix import Cell
from release.processes import StepFailedError, run, site_of
from release.public_names import PUBLIC

__all__ = ["PROGRAMS", "check", "install"]

PROGRAMS = Path(__file__).with_name("programs")
COMMAND = "kinesis-trident"
_RUNS = 3
_WITH_SPARK = ("discovery", "stream")
"""The checks that start a Spark."""


def install(cell: Cell, interpreter: Path, archive: Path, uv: Path, pyproject: Path, folder: Path) -> Path:
    """Make an environment in a folder, and install an archive and Spark in it; return its python."""
    run(uv, "venv", "--quiet", "--python", interpreter, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    chosen: list[object] = [f"{archive}[spark]", f"pyspark=={cell.spark}.*"]
    if cell.is_thin:
        # It may be published later than PySpark.
        chosen = [archive, f"pyspark-client<={cell.spark}.99"]
    if cell.dependencies == "lowest":
        # Of the project and not of the wheel, whose requirements would not count as direct ones.
        compiled = folder / "lowest.txt"
        lowest = ["--resolution", "lowest-direct", "--extra", "spark", "--output-file", compiled]
        run(uv, "pip", "compile", "--quiet", "--python", python, *lowest, pyproject, cwd=folder)
        chosen += ["--constraint", compiled]
    run(uv, "pip", "install", "--quiet", "--python", python, *chosen, cwd=folder)
    run(uv, "pip", "check", "--quiet", "--python", python, cwd=folder)
    return python


def check(cell: Cell, python: Path, version: str, mypy: Path, folder: Path) -> list[str]:
    """Check an environment; return one line for each check that passed. The thin client reads no stream by itself.

    Raises:
        StepFailedError: a check did not pass.
    """
    checks: dict[str, Callable[[], str]] = {
        "console": lambda: _console(python, version, folder),
        "discovery": lambda: _discovery(python, folder),
        "names": lambda: _names(python, folder),
        "import time": lambda: _import_time(python, folder),
        "types": lambda: _types(python, mypy, folder),
        "stream": lambda: _stream(python, folder),
    }
    lines = []
    for name, one in checks.items():
        if cell.is_thin and name in _WITH_SPARK:
            continue
        began = time.monotonic()
        said = one()
        lines.append(f"{name}: {said} ({time.monotonic() - began:.0f} s)")
    return lines


def _console(python: Path, version: str, folder: Path) -> str:
    said = run(python.with_name(COMMAND), "--version", cwd=folder).stdout.strip()
    if said != f"{COMMAND} {version}":
        msg = f"{COMMAND} --version printed {said!r}, not version {version} of pyproject.toml"
        raise StepFailedError(msg)
    return said


def _discovery(python: Path, folder: Path) -> str:
    found = run(python, PROGRAMS / "look_up.py", cwd=folder).stdout.strip()
    if found != COMMAND:
        msg = f"Spark does not find the format {COMMAND} by itself: its search printed {found!r}"
        raise StepFailedError(msg)
    return "Spark finds the format by itself"


def _names(python: Path, folder: Path) -> str:
    found: dict[str, list[str]] = json.loads(run(python, PROGRAMS / "names.py", *PUBLIC, cwd=folder).stdout)
    where = run(python, "-c", f"import {NAME}; print({NAME}.__file__)", cwd=folder).stdout.strip()
    if not Path(where).is_relative_to(site_of(python)):
        msg = f"{NAME} was imported from {where}, not from the environment"
        raise StepFailedError(msg)
    (folder / "every_name.py").write_text(
        "".join(f"from {module} import {name} as {name}\n" for module in found for name in found[module])
    )
    return f"{sum(map(len, found.values()))} public names"


def _import_time(python: Path, folder: Path) -> str:
    ours, sparks = (
        [
            imports.parse_import(
                run(python, "-X", "importtime", "-c", f"import {name}", cwd=folder).stderr, name
            )
            for _ in range(_RUNS)
        ]
        for name in (NAME, "pyspark")
    )
    if found := imports.faults(NAME, ours, sparks):
        raise StepFailedError("\n".join(found))
    part = min(one.microseconds for one in ours) / min(one.microseconds for one in sparks)
    own = [name for name in ours[0].modules if name.partition(".")[0] == NAME]
    return f"{len(own)} modules of its own, none of others, {part:.0%} of the time of import pyspark"


def _types(python: Path, mypy: Path, folder: Path) -> str:
    """Check a user's module, and one that imports every name."""
    target = ["--strict", "--python-executable", python, "--cache-dir", folder / "mypy"]
    run(mypy, *target, PROGRAMS / "typed_user.py", folder / "every_name.py", cwd=folder)
    return "mypy --strict passes for a user's module"


def _stream(python: Path, folder: Path) -> str:
    return run(python, PROGRAMS / "read_stream.py", cwd=folder).stdout.strip()
