"""Errors that would end Spark's worker if nobody caught them, shared by the tests of functions, bolts and Trident."""

from __future__ import annotations

import asyncio
import concurrent.futures


class Panic(BaseException):
    """An error that does not derive from `Exception`, as PyO3's `PanicException` and `gevent.Timeout`."""


LEAVING: list[type[BaseException]] = [
    SystemExit,
    GeneratorExit,
    Panic,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
]
