"""The format `kinesis-trident` on a platform where it cannot run: its `load()` says what is missing.

Spark looks for formats by importing every module named `pyspark_*`, and one that fails hides all others. So this
imports nothing that a PySpark with Python data sources (4.0) lacks.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql.datasource import DataSource

NEEDED = (4, 2)
"""The first PySpark whose streaming readers have read limits and Trigger.AvailableNow."""


def is_supported(version: str) -> bool:
    """Return whether a PySpark of this version, such as `4.2.0` or `4.3.0.dev1`, can run the source."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= NEEDED


def unsupported_source(version: str, error: Exception | None = None) -> type[DataSource]:
    """Return a class that replaces the source; all its methods raise `ImportError`.

    Args:
        version: of the installed PySpark.
        error: why the source cannot be imported, if not for the version.
    """
    if error is None:
        needed = ".".join(map(str, NEEDED))
        why = (
            f"kinesis-trident needs PySpark {needed} or newer, and this is PySpark {version}. Install "
            f"'pyspark>={needed}', on the cluster too"
        )
    else:
        why = (
            f"kinesis-trident cannot be imported in PySpark {version} ({type(error).__name__}: {error}). Check "
            "that it is installed completely, with its dependencies, in the Python that Spark's driver uses"
        )

    # Defined here, because Spark pickles a function's class by value, with the text.
    class UnsupportedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kinesis-trident"

        def schema(self) -> Any:
            raise ImportError(why)

        # If the user sets a schema, Spark does not call `schema`.
        def reader(self, *_: Any, **__: Any) -> Any:
            raise ImportError(why)

        streamReader = simpleStreamReader = writer = streamWriter = reader

    return UnsupportedSource
