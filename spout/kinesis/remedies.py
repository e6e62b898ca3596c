"""Mends a refused call once before the refusal is final: by newer credentials, or by the server's time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.session import Session

from kinesis_trident.spout.kinesis.answers import server_time

log = logging.getLogger(__name__)

T = TypeVar("T")

_OLD_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
    "UnrecognizedClientException",
}
"""Refusals of credentials that may have been replaced since they were read; a wrong signature: while they were."""

_OF_THE_CLOCK = {"RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"}
_SAID_OF_THE_CLOCK = ("Signature expired", "Signature not yet current")
"""The beginnings of the messages with which AWS refuses the time of a signature as InvalidSignatureException."""

_LEAST = timedelta(minutes=1)
"""A smaller difference explains no refusal: the request was signed long before it was sent, by a paused process."""

_SIGNED = "kinesis-trident-signed"


class Remedy(Enum):
    """What may help against a refusal."""

    NEWER_CREDENTIALS = auto()
    SERVER_TIME = auto()


def remedy_of(error: Exception) -> Remedy | None:
    """Return what may help against an error of botocore; None: it is final, or passes by itself."""
    if isinstance(error, NoCredentialsError):
        # A client that was created without credentials never gets any.
        return Remedy.NEWER_CREDENTIALS
    if not isinstance(error, ClientError):
        return None
    said = error.response.get("Error", {})
    code, message = str(said.get("Code", "")), str(said.get("Message", ""))
    if is_of_the_clock(code, message):
        return Remedy.SERVER_TIME
    return Remedy.NEWER_CREDENTIALS if code in _OLD_CREDENTIALS else None


def is_of_the_clock(code: str, message: str) -> bool:
    """Return whether AWS refuses a call for the time at which it was signed."""
    return code in _OF_THE_CLOCK or message.startswith(_SAID_OF_THE_CLOCK)


class Renewed(Generic[T]):
    """A value that threads share, and that is made anew once, however many of them find it unusable. Thread-safe.

    Args:
        value: the first one.
        make: makes another one from the last; returns the last itself if there is no other.
    """

    def __init__(self, value: T, make: Callable[[T], T]) -> None:
        self.value = value
        self._make = make
        self._lock = threading.Lock()
        self._attempts = 0
        self._error: Exception | None = None

    def renew(self, seen: T) -> T:
        """Return a value other than `seen`, made now or by another thread meanwhile; `seen` if there is no other.

        Raises:
            Exception: what `make` raises; to all threads that waited for it.
        """
        attempts = self._attempts
        with self._lock:
            if self.value is seen and self._attempts == attempts:
                self._attempts += 1
                self._error = None
                try:
                    self.value = self._make(seen)
                except Exception as error:
                    self._error = error
            if self.value is seen and self._error is not None:
                raise self._error
            return self.value


class RequestClock:
    """The time that requests are signed with: this machine's, corrected by what a refusal has said. Thread-safe.

    Args:
        now: the machine's time, with its zone.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self.ahead = timedelta()

    def now(self) -> datetime:
        """Return the server's time, as far as it is known."""
        return self._now() + self.ahead

    def correct(self, error: Exception) -> None:
        """Take over the time of the answer that refused a call, if it has one."""
        assert isinstance(error, ClientError)
        answered = server_time(error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}))
        if answered is None:
            return
        ahead = datetime.fromtimestamp(answered / 1000, UTC) - self._now()
        if abs(ahead) < _LEAST:
            self.ahead = timedelta()
            return
        self.ahead = ahead
        log.warning(
            "this machine's clock is %.0f s %s AWS's: requests are signed with AWS's time. Synchronise the clock",
            abs(ahead.total_seconds()),
            "behind" if ahead > timedelta() else "ahead of",
        )


def sign_by(clock: RequestClock, session: Session) -> None:
    """Make all clients of a session, those for its credentials too, sign by a clock that differs from the machine's.

    These are the clients of what gives credentials. botocore signs with the machine's time; a request is signed again
    where that is wrong.
    """

    def note(request: Any, **signing: Any) -> None:
        request.context.pop(_SIGNED, None)
        if clock.ahead and signing["signature_version"] is not UNSIGNED:
            request.context[_SIGNED] = signing

    def sign_again(request: Any, **_: object) -> None:
        signing = request.context.pop(_SIGNED, None)
        if signing is not None:
            name, region = signing["signing_name"], signing["region_name"]
            auth = signing["request_signer"].get_auth_instance(signing_name=name, region_name=region)
            _Signature(auth.credentials, name, region, clock).add_auth(request)

    events = session.get_component("event_emitter")
    events.register("before-sign", note)
    # Handlers of a whole kind of event come after those of one service, of which one signs.
    events.register_last("request-created", sign_again)


class _Signature(SigV4Auth):
    """A signature with the time of a clock."""

    def __init__(self, credentials: Any, service: str, region: str, clock: RequestClock) -> None:
        super().__init__(credentials, service, region)
        self._clock = clock

    def canonical_request(self, request: Any) -> str:
        """Return what is signed; the first step for which the time counts."""
        stamp = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
        request.context["timestamp"] = stamp
        del request.headers["X-Amz-Date"]
        request.headers["X-Amz-Date"] = stamp
        return str(super().canonical_request(request))
