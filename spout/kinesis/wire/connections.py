"""Keeps connections to one origin, opened with the proxies and the certificates that botocore would use."""

from __future__ import annotations

import os
import socket
import ssl
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import SplitResult, urlsplit

from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    SSLError,
)
from botocore.httpsession import ProxyConfiguration, get_cert_path, mask_proxy_url
from botocore.utils import get_environ_proxies
from urllib3.util.ssltransport import SSLTransport

from kinesis_trident.spout.kinesis.wire.http_answers import Connection, HttpAnswer, ProtocolError, error_of

CONNECT_SECONDS = 5
READ_SECONDS = 30
"""The longest silence, in seconds; an answer has up to 10 MiB."""

_KEPT = 64
"""The most connections that are kept for further requests."""

_PORTS = {"http": 80, "https": 443}


def _close_all(kept: list[Connection]) -> None:
    while kept:
        kept.pop().close()


class Connections:
    """Connections to one origin, of which those that are idle are kept for further requests. Thread-safe.

    Args:
        origin: scheme and authority.
        certificates: the file or folder of trusted authorities; None for those that botocore brings.
    """

    def __init__(self, origin: str, certificates: str | None = None) -> None:
        self._origin = urlsplit(origin)
        self._certificates = certificates
        found = ProxyConfiguration(get_environ_proxies(origin))
        self._proxy: str | None = found.proxy_url_for(origin)
        self._proxy_headers: dict[str, str] = found.proxy_headers_for(self._proxy) if self._proxy else {}
        self._is_forwarded = self._proxy is not None and self._origin.scheme == "http"
        self._kept: list[Connection] = []
        weakref.finalize(self, _close_all, self._kept)

    def send(self, path: str, headers: str, body: bytes, url: str) -> Connection:
        """Send a POST; return the connection on which its answer comes, for `receive`.

        Args:
            path: with the query, encoded.
            headers: lines; the size of the body is added.
            body: of the request.
            url: of the endpoint, for errors.

        Raises:
            botocore.exceptions.BotoCoreError: the connection cannot be opened, or broke; or nothing came in time.
        """
        if self._is_forwarded:
            path = f"{self._origin.scheme}://{self._origin.netloc}{path}"
            headers += "".join(f"{name}: {value}\r\n" for name, value in self._proxy_headers.items())
        head = f"POST {path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode()
        connection = self._find_idle() or self._connect(url)
        with _close_if_broken(connection, url):
            connection.send(head, body)
        return connection

    def receive(self, connection: Connection, url: str) -> HttpAnswer:
        """Return the answer to what was sent; raises as `send`."""
        with _close_if_broken(connection, url):
            # Several may be waited for in turn, each since it was sent.
            waited = time.monotonic() - connection.sent
            if waited > 1:
                connection.socket.settimeout(max(0.001, READ_SECONDS - waited))
            head = connection.read_head()
            if waited > 1:
                connection.socket.settimeout(READ_SECONDS)
            return HttpAnswer(connection, head, self._keep, url)

    def _find_idle(self) -> Connection | None:
        """Return a connection that is still open."""
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                return None
            if connection.is_silent:
                return connection
            connection.close()

    def _keep(self, connection: Connection) -> None:
        if len(self._kept) < _KEPT:
            self._kept.append(connection)
        else:
            connection.close()

    def _connect(self, url: str) -> Connection:
        proxy = urlsplit(self._proxy) if self._proxy else None
        connected: Any = None
        try:
            connected = socket.create_connection(_address(proxy or self._origin), CONNECT_SECONDS)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if proxy is not None and proxy.scheme == "https":
                connected = self._tls.wrap_socket(connected, server_hostname=proxy.hostname)
            if self._origin.scheme == "https":
                if proxy is not None:
                    self._open_tunnel(connected)
                name = self._origin.hostname
                connected = (
                    # A socket of the standard library does not encrypt what goes through another one.
                    SSLTransport(connected, self._tls, name)
                    if isinstance(connected, ssl.SSLSocket)
                    else self._tls.wrap_socket(connected, server_hostname=name)
                )
            connected.settimeout(READ_SECONDS)
            return Connection(connected)
        except BaseException as error:
            if connected is not None:
                connected.close()
            if isinstance(error, OSError | ProtocolError):
                raise self._connect_error(error, url) from error
            raise

    def _connect_error(self, error: Exception, url: str) -> Exception:
        if isinstance(error, ssl.SSLError):
            return SSLError(endpoint_url=url, error=error)
        if isinstance(error, TimeoutError):
            return ConnectTimeoutError(endpoint_url=url, error=error)
        if self._proxy is not None:
            return ProxyConnectionError(proxy_url=mask_proxy_url(self._proxy), error=error)
        return EndpointConnectionError(endpoint_url=url, error=error)

    def _open_tunnel(self, connected: socket.socket) -> None:
        """Have a proxy connect to the origin."""
        host, port = _address(self._origin)
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._proxy_headers.items())
        connected.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{headers}\r\n".encode())
        # Nothing follows its answer before what is sent next.
        status = Connection(connected).read_head().status
        if status != 200:
            msg = f"the proxy refused the tunnel: HTTP {status}"
            raise ProtocolError(msg)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["http/1.1"])
        path = self._certificates or str(get_cert_path(True))
        try:
            context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
        except OSError as error:
            msg = f"the certificates of trusted authorities cannot be read: {path} ({error})"
            raise HTTPClientError(error=msg) from error
        return context


@contextmanager
def _close_if_broken(connection: Connection, url: str) -> Iterator[None]:
    """Close a connection on any error, which becomes botocore's."""
    try:
        yield
    except (OSError, ProtocolError) as error:
        connection.close()
        raise error_of(error, url) from error
    except BaseException:
        connection.close()
        raise


def _address(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80)
