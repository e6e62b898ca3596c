"""Says how to get PySpark, where it is missing or older than 4.0: the base install leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kinesis_trident.common.errors import MissingPackageError


@contextmanager
def spark_needed(what: str) -> Iterator[None]:
    """Import what needs PySpark in this context.

    Raises:
        MissingPackageError: there is none, and the message names the platform's own and the extra `spark`; or it is so
            old (3.5) that it has no Python data sources.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] != "pyspark":
            raise
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
