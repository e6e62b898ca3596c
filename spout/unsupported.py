"""The format `kinesis-trident` where its modules cannot be imported: its `load()` says what is missing.

Spark looks for formats by importing every module named `pyspark_*`, and one that fails hides all others. So this
imports nothing that a PySpark with Python data sources (4.0) lacks.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


def unsupported_source(version: str, error: Exception) -> type[DataSource]:
    """Return a class that replaces the source; all its methods raise `ImportError`.

    Args:
        version: of the installed PySpark.
        error: why the source cannot be imported.
    """
    why = (
        f"kinesis-trident cannot be imported in PySpark {version} ({type(error).__name__}: {error}). Check that it is "
        "installed completely, with its dependencies, in the Python that Spark's driver uses"
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
