"""Checks whose key signed a call, and when; not the signature itself. Pure; times are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from kinesis_trident.spout.testing.tokens import RefusedError

_FORM = "%Y%m%dT%H%M%SZ"


class Signatures(msgspec.Struct, frozen=True):
    """The signatures that are accepted.

    Args:
        key: the id of the access key; None for any.
        code: the error of any other key.
        seconds: the most between the time of a signature and the endpoint's; None for any time.
    """

    key: str | None = None
    code: str = ""
    seconds: float | None = None

    def check(self, headers: Mapping[str, str], now: int) -> None:
        """Check the headers of a call (lower-case names).

        Raises:
            RefusedError: another key signed it, or it was signed at another time.
        """
        signed = headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        if self.key is not None and signed != self.key:
            msg = "The security token included in the request is invalid."
            raise RefusedError(msg, code=self.code)
        if self.seconds is None:
            return
        stamp = headers.get("x-amz-date", "")
        at = datetime.strptime(stamp, _FORM).replace(tzinfo=UTC).timestamp() * 1000
        early, late = (now + sign * self.seconds * 1000 for sign in (-1, 1))
        if early <= at <= late:
            return
        if at < early:
            msg = f"Signature expired: {stamp} is now earlier than {_text(early)} ({_text(now)} - {self._minutes})"
        else:
            bound = f"{_text(late)} ({_text(now)} + {self._minutes})"
            msg = f"Signature not yet current: {stamp} is still later than {bound}"
        raise RefusedError(msg, code="InvalidSignatureException")

    @property
    def _minutes(self) -> str:
        return f"{(self.seconds or 0) / 60:g} min."


def _text(time: float) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).strftime(_FORM)
