"""The format `kinesis-trident` where it cannot run: it is found by Spark, and says at `load()` what is missing.

Spark looks for formats by importing every module named `pyspark_*`, and one that fails hides all others. So this
imports nothing that a PySpark with Python data sources (4.0) lacks.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["NEEDED", "is_supported", "unsupported_source"]

NEEDED = (4, 2)
"""The first PySpark whose streaming readers have read limits and Trigger.AvailableNow."""


def is_supported(version: str) -> bool:
    """Whether a PySpark of this version can run the source, such as `4.2.0` or `4.3.0.dev1`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= NEEDED


def unsupported_source(version: str, error: Exception | None = None) -> type[DataSource]:
    """The class that Spark finds instead of the source; all that can be asked of it raises `ImportError`.

    Args:
        version: of the PySpark that is here.
        error: why the source cannot be imported, where the version is not the reason.
    """
    if error is None:
        needed = ".".join(map(str, NEEDED))
        why = (
            f"kinesis-trident needs PySpark {needed} or newer, and this is PySpark {version}. Install "
            f"'pyspark>={needed}', on the cluster too"
        )
    else:
        why = (
            f"kinesis-trident cannot be imported in PySpark {version} ({type(error).__name__}: {error}). Look whether "
            "it is installed whole, with its dependencies, in the Python that Spark's driver uses"
        )

    # Made here, because Spark sends a class of a function by value: the text travels with it.
    class UnsupportedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kinesis-trident"

        def schema(self) -> Any:
            raise ImportError(why)

        # With a schema given, Spark does not ask for one.
        def reader(self, *_: Any, **__: Any) -> Any:
            raise ImportError(why)

        streamReader = simpleStreamReader = writer = streamWriter = reader

    return UnsupportedSource
