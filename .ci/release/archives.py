"""What is in a wheel and an sdist, and what must be."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path

__all__ = [
    "BESIDE",
    "DISCOVERY",
    "LICENCES",
    "NAME",
    "PACKAGES",
    "faults",
    "files_of",
    "metadata_of",
    "modules",
]

NAME = "kinesis_trident"
DISCOVERY = "pyspark_kinesis_trident.py"
PACKAGES = ("bolt", "checkpoint", "console", "spout", "tracker", "trident")
LICENCES = {"LICENSE", "NOTICE"}
BESIDE = {"CHANGELOG.md", *LICENCES, "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
"""The files of an sdist that are not in the wheel."""

MOST_BYTES = 21 << 16
"""The package is text: an archive that is larger has something in it that nobody meant to publish."""


def modules(checkout: Iterable[str]) -> set[str]:
    """Return the files of the package, each by its place in the wheel.

    Args:
        checkout: paths relative to the checkout; other files than the package's are left out.
    """
    checkout = list(checkout)
    links = {f"{NAME}/{package}" for package in PACKAGES}
    below_name = {path for path in checkout if path.startswith(f"{NAME}/")}
    linked = {f"{NAME}/{path}" for path in checkout if path.split("/")[0] in PACKAGES}
    return (below_name - links) | linked | {DISCOVERY}


def files_of(archive: Path) -> list[str]:
    """Return the names of the files in a wheel, or those of an sdist below its only folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return sorted(wheel.namelist())
    with tarfile.open(archive) as sdist:
        members = [member for member in sdist if not member.isdir()]
        odd = [member.name for member in members if not member.isfile()]
        if odd:
            msg = f"{archive.name} has members that are no files: {', '.join(odd)}"
            raise ValueError(msg)
        return sorted(member.name.partition("/")[2] for member in members)


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def faults(archive: str, files: list[str], size: int, wanted: set[str]) -> list[str]:
    """Return what is wrong with an archive: its files and its size.

    Args:
        archive: the name of the archive; one that ends in .whl is a wheel.
        files: the names of the files in it.
        size: in bytes.
        wanted: the package's files, as `modules` returns them.
    """
    found = []
    is_wheel = archive.endswith(".whl")
    package = {name for name in files if ".dist-info/" not in name} if is_wheel else set(files) - BESIDE
    licences = {name.rpartition("/licenses/")[2] if is_wheel else name for name in files}
    if twice := sorted({name for name in files if files.count(name) > 1}):
        found.append(f"{archive} has files twice: {', '.join(twice)}")
    if missing := sorted(wanted - package):
        found.append(f"{archive} lacks files of the checkout: {', '.join(missing)}")
    if strange := sorted(package - wanted):
        found.append(f"{archive} has files that are not in git: {', '.join(strange)}")
    if unlicensed := sorted(LICENCES - licences):
        found.append(f"{archive} lacks {', '.join(unlicensed)}")
    if f"{NAME}/py.typed" not in files:
        found.append(f"{archive} has no {NAME}/py.typed: type checkers would ignore its types")
    if size > MOST_BYTES:
        found.append(f"{archive} has {size:,} bytes, more than {MOST_BYTES:,}: look at what is in it")
    return found
