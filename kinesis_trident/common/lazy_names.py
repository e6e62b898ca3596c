"""Public names that are imported when they are first asked for; it says how to get the package that one needs."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_EXTRA = re.compile(r"""(?P<package>[\w-]+).*\bextra == ['"](?P<extra>[\w-]+)""")
"""A requirement of an extra, as in the metadata of a package."""


def lazy_names(
    module: str, **made: Callable[[], Any]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__all__`, `__getattr__` and `__dir__` of a module whose names live elsewhere.

    The names are those that its own source imports below `if TYPE_CHECKING`, where a type checker reads them. To read
    it takes a millisecond, and works in an archive too.

    Args:
        module: the name of the module that offers the names.
        made: names that a function makes each time.

    Returns:
        The three. `__getattr__` imports a name and keeps it in the module. It raises AttributeError for any other
        name, and MissingPackageError where the name needs PySpark or the package of an extra, and there is none.
    """
    homes = _imports_for_type_checkers(module)

    def load(name: str) -> Any:
        if name in made:
            return made[name]()
        if name not in homes:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        with _package_needed(f"{module}.{name}"):
            value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    names = sorted({*homes, *made})
    return names, load, lambda: sorted({*vars(sys.modules[module]), *names})


def _imports_for_type_checkers(module: str) -> dict[str, str]:
    """Return the module that each name is imported from."""
    loader: Any = sys.modules[module].__loader__
    tree = ast.parse(loader.get_source(module))
    return {
        alias.name: str(imported.module)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for imported in block.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
    }


@contextmanager
def _package_needed(what: str) -> Iterator[None]:
    """Import what needs PySpark or the package of an extra in this context.

    Raises:
        MissingPackageError: it is not there, and the message names the extra, for PySpark the platform's own too; or
            PySpark is so old (3.5) that it has no Python data sources.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # Our errors import msgspec, which `import kinesis_trident` alone does not need.
        from kinesis_trident.common.errors import MissingPackageError

        name = error.name or ""
        package = name.partition(".")[0]
        if package != "pyspark":
            extra = _find_extra(package)
            if extra is None:
                raise
            msg = (
                f"{what} needs the package {package}. Run pip install 'kinesis-trident[{extra}]', on the executors "
                "too"
            )
            raise MissingPackageError(msg, name=package) from error
        try:
            from pyspark import __version__
        except ImportError:
            msg = (
                f"{what} needs PySpark, which this Python does not find. On a platform that has Spark, run it with the "
                "platform's own (spark-submit puts it on the path). Elsewhere: pip install 'kinesis-trident[spark]'"
            )
        else:
            msg = (
                f"{what} needs PySpark 4.0 or newer, and this is PySpark {__version__}, which lacks {name}. Use a "
                "release of the platform that has Spark 4.0 or newer, or pip install 'pyspark>=4.0', on the cluster too"
            )
        raise MissingPackageError(msg, name="pyspark") from error


def _find_extra(package: str) -> str | None:
    """Return the extra of kinesis-trident that brings a package; None if none does."""
    # It takes tens of milliseconds, which only an error is worth.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("kinesis-trident") or []
    except PackageNotFoundError:
        return None
    extras = [_EXTRA.match(line) for line in lines]
    sizes = Counter(found["extra"] for found in extras if found)
    wanted = package.replace("_", "-")
    # Those for the project's own work bring many.
    return min(
        (one["extra"] for one in extras if one and one["package"] == wanted),
        key=sizes.__getitem__,
        default=None,
    )
