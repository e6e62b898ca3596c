"""Programs that a release runs, away from the checkout and from the settings of the shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["StepFailedError", "find_python", "run", "site_of"]

_HIDDEN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}


class StepFailedError(Exception):
    """A program ended with an error; the message has the end of what it printed."""


def run(*command: object, cwd: Path, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    The program's folder is the first of the PATH, as in an activated environment: Spark starts its workers as the
    python3 of the PATH.

    Raises:
        StepFailedError: its exit code is not 0.
    """
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    environment["PATH"] = os.pathsep.join([str(Path(words[0]).parent), environment.get("PATH", os.defpath)])
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        printed = (done.stdout[-2000:] + done.stderr[-4000:]).strip()
        msg = f"{' '.join(words)} ended with exit code {done.returncode}\n{printed}"
        raise StepFailedError(msg)
    return done


def site_of(python: Path) -> Path:
    """Return the folder of the packages of a virtual environment."""
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return site


def find_python(version: str) -> Path | None:
    """Return the first Python of a minor version that starts, of the PATH's and pyenv's; None without one."""
    for program in _pythons(version):
        code = "import sys; print('{}.{}'.format(*sys.version_info))"
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
        # pyenv's shims are there for each version, and fail for one that is not chosen.
        if done.stdout.strip() == version:
            return program
    return None


def _pythons(version: str) -> Iterator[Path]:
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += sorted(pyenv.glob(f"versions/{version}.*/bin"))
    for folder in folders:
        program = folder / f"python{version}"
        if program.is_file() and os.access(program, os.X_OK):
            yield program
