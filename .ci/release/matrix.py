"""The environments in which a release is checked, as the project's own files name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.version import Version

__all__ = ["Cell", "cells"]

_PYTHON = "Programming Language :: Python :: "
_NEWEST_PYTHON = {"4.0": "3.13"}
"""Of a PySpark that does not run on each Python of the classifiers."""


@dataclass(frozen=True)
class Cell:
    """One environment: `python` and `spark` are minor versions such as 3.11 and 4.2."""

    python: str
    spark: str
    dependencies: Literal["lowest", "newest"] = "newest"
    artifact: Literal["wheel", "sdist"] = "wheel"
    is_thin: bool = False
    """Whether it has Spark's thin client, which starts no Spark, in place of PySpark."""

    def __str__(self) -> str:
        spark = "Spark's thin client" if self.is_thin else "PySpark"
        return (
            f"{self.artifact} on Python {self.python}, {spark} {self.spark}, {self.dependencies} dependencies"
        )


def cells(project: Mapping[str, Any], constraints: str) -> list[Cell]:
    """Return the environments, oldest Python first.

    The wheel is checked with each Python of the classifiers and each PySpark from the oldest that is allowed to the
    one of constraints.txt. The oldest of both also gets the lowest dependencies, the oldest Python also the sdist, the
    newest of both also the thin client.

    Args:
        project: the table `project` of pyproject.toml.
        constraints: the text of constraints.txt.
    """
    pythons = [line.removeprefix(_PYTHON) for line in project["classifiers"] if line.startswith(_PYTHON)]
    sparks = _sparks(project["optional-dependencies"]["spark"], constraints)
    return [
        Cell(pythons[0], sparks[0], "lowest"),
        *(Cell(python, spark) for python in pythons for spark in sparks if _runs(spark, python)),
        Cell(pythons[0], sparks[-1], artifact="sdist"),
        Cell(pythons[-1], sparks[-1], is_thin=True),
    ]


def _runs(spark: str, python: str) -> bool:
    return Version(python) <= Version(_NEWEST_PYTHON.get(spark, python))


def _sparks(extra: list[str], constraints: str) -> list[str]:
    (lowest,) = (bound.version for line in extra for bound in Requirement(line).specifier)
    (newest,) = re.findall(r"^pyspark==(\S+)$", constraints, re.MULTILINE)
    oldest, latest = Version(lowest), Version(newest)
    if oldest.major != latest.major:
        msg = f"PySpark {lowest} and {newest} have several minor versions between them that no file names"
        raise ValueError(msg)
    return [f"{oldest.major}.{minor}" for minor in range(oldest.minor, latest.minor + 1)]
