"""Signs requests as "AWS Signature Version 4" of the AWS documentation does. Pure.

botocore's signer builds and searches an object for each header, which takes a sixth of a millisecond. What is the same
in all requests of a call is kept here, and so is the key of the day.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

_ALGORITHM = "AWS4-HMAC-SHA256"
_TOKEN = "x-amz-security-token"


class AccessKeys(NamedTuple):
    """An access key, with the token of a session if it has one."""

    access: str
    secret: str
    token: str | None = None


class Signer:
    """Signs the requests of one call. Thread-safe.

    Args:
        headers: what all requests are sent and signed with, by lower-case names; `host` is among them.
        path: of the URL, encoded as it is signed.
        query: likewise, its parameters in order.
        region: of the signature.
        service: likewise.
    """

    def __init__(self, headers: Mapping[str, str], path: str, query: str, region: str, service: str) -> None:
        self._first = f"POST\n{path}\n{query}\n"
        self._headers = headers
        self._scope = f"{region}/{service}/aws4_request"
        self._region, self._service = region, service
        self._texts: dict[bool, tuple[str, str]] = {}
        # Threads replace it as a whole.
        self._key: tuple[str, str, bytes] = ("", "", b"")

    def sign(self, keys: AccessKeys, at: datetime, body: bytes) -> str:
        """Return the headers that sign a request, each with its end of line.

        Args:
            keys: to sign with.
            at: the time, in UTC.
            body: of the request.
        """
        stamp = at.strftime("%Y%m%dT%H%M%SZ")
        day = stamp[:8]
        # Whitespace is signed as one blank, so it is sent as one.
        token = None if keys.token is None else " ".join(keys.token.split())
        canonical, names = self._text(token is not None)
        signed = canonical.format(stamp, token) + sha256(body).hexdigest()
        scope = f"{day}/{self._scope}"
        text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{sha256(signed.encode()).hexdigest()}"
        signature = hmac.digest(self._key_of(keys.secret, day), text.encode(), "sha256").hex()
        session = "" if token is None else f"X-Amz-Security-Token: {token}\r\n"
        return (
            f"X-Amz-Date: {stamp}\r\n{session}Authorization: {_ALGORITHM} "
            f"Credential={' '.join(keys.access.split())}/{scope}, SignedHeaders={names}, Signature={signature}\r\n"
        )

    def _text(self, has_token: bool) -> tuple[str, str]:
        """Return the form of what is signed, without the hash of the body, and the names of the signed headers."""
        if has_token not in self._texts:
            values = {name: " ".join(value.split()) for name, value in self._headers.items()}
            fixed = {name: value.replace("{", "{{").replace("}", "}}") for name, value in values.items()}
            headers = fixed | {"x-amz-date": "{0}"} | ({_TOKEN: "{1}"} if has_token else {})
            first = self._first.replace("{", "{{").replace("}", "}}")
            lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
            names = ";".join(sorted(headers))
            self._texts[has_token] = f"{first}{lines}\n{names}\n", names
        return self._texts[has_token]

    def _key_of(self, secret: str, day: str) -> bytes:
        """Return the key of a day."""
        last, of, key = self._key
        if last == secret and of == day:
            return key
        key = f"AWS4{secret}".encode()
        for part in (day, self._region, self._service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._key = secret, day, key
        return key
