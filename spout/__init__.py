"""Kinesis to Spark: options, shards, positions, fetching, batches, and the DataSource itself."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinesis_trident.spout.graceful_stop import stop

__all__ = ["stop"]


def __getattr__(name: str) -> Any:
    # Spark imports this package in each process that looks for a format: it must be quick, and never fail.
    if name == "stop":
        from kinesis_trident.spout.graceful_stop import stop

        return stop
    msg = f"module 'spout' has no attribute {name!r}"
    raise AttributeError(msg)
