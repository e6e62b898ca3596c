"""Says how to get PySpark, where it is missing: the base install leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kinesis_trident.common.errors import MissingPackageError


@contextmanager
def spark_needed(what: str) -> Iterator[None]:
    """Import what needs PySpark in this context.

    Raises:
        MissingPackageError: there is none; the message names the platform's own and the extra `spark`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        msg = (
            f"{what} needs PySpark, which this Python does not find. On a platform that has Spark, run it with the "
            "platform's own (spark-submit puts it on the path). Elsewhere: pip install 'kinesis-trident[spark]'"
        )
        raise MissingPackageError(msg, name="pyspark") from error
