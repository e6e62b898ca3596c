"""What `python -X importtime` says of one import."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Import", "faults", "parse_import"]

_LINE = re.compile(r"^import time: +\d+ \| +(?P<total>\d+) \| (?P<indent> *)(?P<module>\S+)$", re.MULTILINE)

MOST_OF_SPARK = 0.25
"""Importing the package takes at most this part of the time of importing PySpark."""


@dataclass(frozen=True)
class Import:
    """The modules that were loaded by one import statement, and the microseconds that it took."""

    modules: tuple[str, ...]
    microseconds: int


def parse_import(report: str, module: str) -> Import:
    """Return the import of a module that no other module imported before.

    Raises:
        ValueError: the report has no such import.
    """
    # A module comes after those that it imports, which are indented.
    below: list[str] = []
    for line in _LINE.finditer(report):
        below.append(line["module"])
        if not line["indent"]:
            if line["module"] == module:
                return Import(tuple(below), int(line["total"]))
            below.clear()
    msg = f"python -X importtime names no import of {module}"
    raise ValueError(msg)


def faults(package: str, ours: Iterable[Import], sparks: Iterable[Import]) -> list[str]:
    """Return what is wrong with importing a package, by the shortest of several runs of it and of PySpark."""
    ours = list(ours)
    allowed = {*sys.stdlib_module_names, package}
    heavy = sorted({name for one in ours for name in one.modules if name.partition(".")[0] not in allowed})
    found = [f"import {package} loads {', '.join(heavy)}"] if heavy else []
    shortest = min(one.microseconds for one in ours)
    spark = min(one.microseconds for one in sparks)
    if shortest > spark * MOST_OF_SPARK:
        found.append(f"import {package} takes {shortest / spark:.0%} of the time of import pyspark")
    return found
