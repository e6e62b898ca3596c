"""Public names that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module whose names live elsewhere.

    Args:
        module: the name of the module that offers the names.
        homes: the module in which each name lives, by the name.

    Returns:
        A function that imports a name and keeps it in the module. It raises AttributeError for any other name, and
        MissingPackageError where the name needs PySpark and there is none.
    """

    def load(name: str) -> Any:
        if name not in homes:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        from kinesis_trident._spark import spark_needed

        with spark_needed(f"{module}.{name}"):
            value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load
