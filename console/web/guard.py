"""The defences of what is served: the token that allows changes, the origin of a request, the headers of each answer.

The name in the Host header is checked: a page of another site cannot reach this one under a name of its own (DNS
rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL = ("127.0.0.1", "[::1]", "localhost")
_PORT = re.compile("[0-9]{1,5}")
_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^:\[\]]+)(:[0-9]*)?")

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # no-referrer would make browsers hide the origin of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """Decides who may change things: whoever has opened the address with the token, from our own pages only.

    The browser keeps a cookie, and each form has a field; both follow from the token, and are worth nothing alone.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def session(self) -> str:
        """The value of the cookie."""
        return self._derive("session")

    @property
    def form(self) -> str:
        """The value of the field of each form."""
        return self._derive("form")

    def is_token(self, given: str) -> bool:
        """Return whether this is the token."""
        return _same(given, self.token)

    def knows(self, request: Request) -> bool:
        """Return whether the request comes from a browser that has opened the address with the token."""
        return _same(request.cookies.get(cookie_name(request), ""), self.session)

    def refusal(self, request: Request, field: str) -> str:
        """Return why a request may change nothing; empty if it may."""
        origin = request.headers.get("origin", "")
        host = _host_of(origin)
        if not host or host != request.headers.get("host"):
            return "the request does not come from this page. Open the address that kinesis-trident ui has printed"
        if not self.knows(request) or not _same(field, self.form):
            return (
                "this browser has not opened the address with the token. Open the one that kinesis-trident ui has "
                "printed"
            )
        return ""

    def _derive(self, what: str) -> str:
        return hmac.new(self.token.encode(), what.encode(), hashlib.sha256).hexdigest()


class SafeHeaders:
    """ASGI middleware: adds to each answer the headers that keep other pages and foreign content out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with the headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


class KnownHosts:
    """ASGI middleware: refuses what is asked of a host of another name, whatever its port.

    Starlette has one, which knows addresses of IPv6 and capitals in its newest releases only.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        # An address of IPv6 may be given without its brackets, and any name with a port.
        given = (f"[{host}]" if host.count(":") > 1 and "]" not in host else host for host in hosts)
        self._names = {name for name in map(_name_of, given) if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it is for one of the names."""
        if scope["type"] != "http" or self._knows(_name_of(Headers(scope=scope).get("host", ""))):
            await self._app(scope, receive, send)
            return
        said = "This server does not know the name that it is asked by. Give it that with --allowed-host"
        await PlainTextResponse(said, 400)(scope, receive, send)

    def _knows(self, name: str) -> bool:
        return name in self._names or any(
            name.endswith(one[1:]) for one in self._names if name and one.startswith("*")
        )


def guards(hosts: Sequence[str]) -> list[Middleware]:
    """Return the middleware of every application that is served: `hosts` are more names under which it is asked for."""
    return [Middleware(SafeHeaders), Middleware(KnownHosts, hosts=[*_LOCAL, *hosts])]


def cookie_name(request: Request) -> str:
    """Return the name of our cookie: browsers send those of all ports of a host to each of them."""
    # Not of `request.url`, which does not exist if the port is no number.
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"kinesis-trident-{port if _PORT.fullmatch(port) else 80}"


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port; empty if it is none."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found else ""


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        # An address such as http://[ is none, and comes from no page.
        return ""


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
