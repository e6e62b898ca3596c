"""Makes the calls of Kinesis' API: with credentials that are replaced, and again after what passes by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from kinesis_trident.spout.kinesis import InUseError, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.aws_errors import code_of, translate_error
from kinesis_trident.spout.kinesis.aws_session import create_calls, find_fixed_keys, open_session
from kinesis_trident.spout.kinesis.rate_limit import full_jitter
from kinesis_trident.spout.kinesis.remedies import Remedy, Renewed, RequestClock, remedy_of
from kinesis_trident.spout.kinesis.shard_reads import name_stream
from kinesis_trident.spout.kinesis.wire.calls import KinesisCalls
from kinesis_trident.spout.options.connection import ConnectionOptions

T = TypeVar("T")

_CREATIONS = 4
"""Attempts to create a client while the source of the credentials does not answer."""

_READS = {"GetRecords", "GetShardIterator", "SubscribeToShard"}
"""The calls that are not repeated here."""

EXPIRED_TOKEN = "ExpiredNextTokenException"


class _Access(NamedTuple):
    """The calls, their region and endpoint, and their credentials if these stay as they are."""

    keys: tuple[str | None, ...] | None
    calls: KinesisCalls
    where: str


class PatientCalls:
    """Makes the calls of one connection; thread-safe. Errors name what was asked for, the region and the endpoint.

    Reads of records are never repeated: `spout.reader.fetch` decides what a throttle or a fault means for the shard's
    turn. All other calls are, up to `clientNumRetries` times, after a throttle or a passing fault.

    A call whose credentials are refused is made once more if there are newer ones: files, processes and containers
    replace them while this process lives. One that is refused for the machine's clock is made once more with AWS's.

    Args:
        options: of the connection.
        sleep: seconds.
        rng: draws the waits.
        clock: the time to sign with.
        steady: seconds that never step back, for the deadlines of answers.

    Raises:
        KinesisError: the options name no usable region, profile or endpoint.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        clock: RequestClock | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rng = rng or random.Random()
        self._options = options
        self._sleep = sleep
        self._clock = clock or RequestClock()
        self._steady = steady
        self._arns = options.arns
        self._access = Renewed(self._create_patiently(), self._create)
        self._where = self._access.value.where

    def _call(
        self,
        what: str,
        call: str,
        arguments: Mapping[str, Any],
        parse: Callable[[memoryview, int | None], T],
        body: bytes | None = None,
    ) -> T:
        """Make a call, and repeat it after a throttle or a passing fault if it is none of a read."""
        retries = 0 if call in _READS else self._options.client_num_retries
        failures = 0
        while True:
            try:
                return self._attempt(what, lambda calls: calls.call(call, arguments, parse, body))
            except (ThrottledError, Unavailable) as error:
                failures += 1
                # A token that has expired, and a consumer that exists, stay so.
                is_lasting = isinstance(error, InUseError) or code_of(error) == EXPIRED_TOKEN
                if failures > retries or is_lasting:
                    raise
                self._sleep(full_jitter(failures, self._rng, base=1.0))

    def _attempt(self, what: str, make: Callable[[KinesisCalls], T]) -> T:
        """Make a call once, and once more for each remedy of a refusal."""
        tried: set[Remedy] = set()
        while True:
            access = self._access.value
            try:
                return make(access.calls)
            except (BotoCoreError, ClientError, ResponseParserError) as error:
                remedy = remedy_of(error)
                if remedy is None or remedy in tried or not self._apply(remedy, error, access):
                    raise translate_error(error, what, self._where) from error
                tried.add(remedy)

    def _apply(self, remedy: Remedy, error: Exception, refused: _Access) -> bool:
        """Apply a remedy; tell whether the call is worth another try."""
        if remedy is Remedy.SERVER_TIME:
            self._clock.correct(error)
            return True
        return self._access.renew(refused) is not refused

    def _create_patiently(self) -> _Access:
        """Create the calls; retry for some seconds while the source of the credentials does not answer."""
        for failures in range(1, _CREATIONS):
            try:
                return self._create()
            except Unavailable:
                self._sleep(full_jitter(failures, self._rng, base=1.0))
        return self._create()

    def _create(self, last: _Access | None = None) -> _Access:
        """Create the calls; return the `last` ones if their credentials are still the ones to use."""
        options = self._options
        try:
            session = open_session(options, self._clock)
            keys = find_fixed_keys(session)
            if last is not None and keys is not None and keys == last.keys:
                return last
            return _Access(keys, *create_calls(session, options, self._clock, self._steady))
        except (BotoCoreError, ValueError) as error:
            where = f"{options.region or 'no region'} ({options.endpoint_url or 'default endpoint'})"
            raise translate_error(error, f"stream {options.stream_name!r}", where) from error

    def _stream(self, name: str) -> dict[str, str]:
        return name_stream(self._arns, name)
