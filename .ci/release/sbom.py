"""The bill of materials of a wheel: the packages that it brings, with their versions and licences, as CycloneDX."""

from __future__ import annotations

import json
from email.message import Message
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.processes import run

__all__ = ["faults", "write"]


def write(wheel: Path, target: Path, *, tools: Path, constraints: Path, pyproject: Path) -> None:
    """Install a wheel into an environment of its own, without extras, and write what is in it then.

    Args:
        wheel: what is described.
        target: the file that is written; the same wheel and the same versions give the same bytes.
        tools: the folder of `uv` and `cyclonedx-py`.
        constraints: the versions that are described. A user may have others.
        pyproject: says what the package itself is.
    """
    with TemporaryDirectory(prefix="kinesis-trident-sbom-") as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        run(tools / "uv", "venv", "--quiet", "--python", tools / "python", folder / "venv", cwd=folder)
        run(
            tools / "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            wheel,
            "--constraint",
            constraints,
            cwd=folder,
        )
        form = ["--mc-type", "library", "--output-reproducible", "--of", "JSON", "--output-file", target]
        run(tools / "cyclonedx-py", "environment", "--pyproject", pyproject, *form, python, cwd=folder)


def faults(bill: str, metadata: Message) -> list[str]:
    """Return what is wrong with a bill of materials.

    Args:
        bill: its text.
        metadata: that of the wheel, whose requirements without an extra must be in it.
    """
    read = json.loads(bill)
    described = read["metadata"]["component"]
    found = []
    if (described["name"], described["version"]) != (metadata["Name"], metadata["Version"]):
        found.append(f"it describes {described['name']} {described['version']}")
    listed = {canonicalize_name(one["name"]) for one in read["components"]}
    needed = map(Requirement, metadata.get_all("Requires-Dist", []))
    missing = sorted(
        one.name for one in needed if one.marker is None and canonicalize_name(one.name) not in listed
    )
    if missing:
        found.append(f"it lacks {', '.join(missing)}")
    return found
