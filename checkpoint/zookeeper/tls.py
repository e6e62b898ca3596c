"""TLS to ZooKeeper: its settings, the connections, why servers refuse them, and whether a server wants TLS."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from kinesis_trident.checkpoint.errors import ZooKeeperConfigError

log = logging.getLogger(__name__)

_PROBE_SECONDS = 1.0

_HINTS = {
    ("CERTIFICATE_VERIFY_FAILED",): "The server's certificate must be valid today, come from an authority in "
    "zookeeper.tls.ca and name the host as zookeeper.hosts does; zookeeper.tls.checkHostname=false accepts another "
    "name",
    (
        "Key Identifier",
        "key usage",
        "Basic Constraints",
    ): "From Python 3.13 on, certificates are checked as RFC 5280 "
    "asks: let the authority issue them anew with basicConstraints (critical), keyUsage, subjectKeyIdentifier and "
    "authorityKeyIdentifier",
    (
        "ALERT_CERTIFICATE",
        "ALERT_BAD_CERTIFICATE",
        "ALERT_UNKNOWN_CA",
        "ALERT_UNSUPPORTED_CERTIFICATE",
    ): "The server "
    "refuses this client's certificate: it must be valid today, and come from an authority that the server trusts "
    "(zookeeper.tls.cert, .key)",
    (
        "UNEXPECTED_EOF",
        "WRONG_VERSION_NUMBER",
    ): "If the server speaks no TLS at this port, name its secureClientPort in zookeeper.hosts",
}
"""What to do by what a refusal says."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The proof of the server's identity, and the certificate that this client shows.

    Attributes:
        ca: PEM file of the only authorities to trust; the machine's own if None.
        cert: PEM file of the certificate to show.
        key: PEM file of its key; None if `cert` holds it.
        verify: False accepts any certificate, of any server.
        check_hostname: the certificate must name the host as `hosts` does.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True
    check_hostname: bool = True


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler, with its own way to connect; the log says why a lost connection does not come back.

    Args:
        tls: read again for each connection, so that a certificate may be renewed while a query runs.

    Raises:
        ZooKeeperConfigError: a file is missing, or has the wrong content.
    """

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls
        self._refusals: dict[str, str] = {}
        self._has_connected = False
        _context(tls)

    @property
    def refusal(self) -> str:
        """Why connections failed since the last that succeeded, a reason for each address; empty if none failed."""
        return "; ".join(dict.fromkeys(self._refusals.values()))

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Connect to `address`; `hostname` is the name that the certificate must contain.

        Raises:
            OSError: the server does not answer, or its certificate is not accepted.
        """
        host, port = address[0], address[1]
        where = f"{host}:{port}" if hostname in (None, host) else f"{hostname}:{port} at {host}"
        try:
            context = _context(self._tls)
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # The deadline also applies to the handshake.
                connection = context.wrap_socket(plain, server_hostname=hostname or host)
            except BaseException:
                plain.close()
                raise
        except ZooKeeperConfigError as error:
            self._note(where, str(error))
            # kazoo retries after an OSError; any other error ends its thread.
            raise OSError(str(error)) from error
        except OSError as error:
            self._note(where, f"{where}: {error}")
            raise

        def tell(error: ssl.SSLError | None) -> None:
            if error is not None:
                self._note(where, f"{where}: {error}")
            elif self._refusals or not self._has_connected:
                self._has_connected = True
                self._refusals.clear()

        connection.tell = tell  # type: ignore[attr-defined]
        return connection

    def _note(self, where: str, refusal: str) -> None:
        if self._has_connected and self._refusals.get(where) != refusal:
            hint = _hint_of(refusal)
            log.warning("ZooKeeper cannot be reached again: %s%s", refusal, f". {hint}" if hint else "")
        self._refusals[where] = refusal


class _ToldSocket(ssl.SSLSocket):
    """A connection that tells of its first answer, and how it breaks.

    With TLS 1.3 a server refuses a client's certificate only once the client takes the handshake for done.
    """

    tell: Callable[[ssl.SSLError | None], None]

    def recv(self, *args: Any) -> bytes:
        try:
            received = super().recv(*args)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.tell(error)
            raise
        if received:
            self.tell(None)
        return received


def explain_tls(client: KazooClient) -> tuple[str, str]:
    """Return why the servers refuse a client's TLS, in brackets, and what to do; both empty if TLS is no reason."""
    if isinstance(client.handler, TlsHandler):
        refusal = client.handler.refusal
        hint = _hint_of(refusal)
        return f" ({refusal})" if refusal else "", f". {hint}" if hint else ""
    for host, port in client.hosts:
        if _wants_tls(host, port):
            said = f"{host}:{port} speaks TLS, which this client does not use"
            return (
                "",
                f". {said}: set zookeeper.tls.ca, or name the server's port without TLS in zookeeper.hosts",
            )
    return "", ""


def _hint_of(refusal: str) -> str:
    said = refusal.upper().replace(" ", "_")
    return ". ".join(
        hint
        for words, hint in _HINTS.items()
        if any(word.upper().replace(" ", "_") in said for word in words)
    )


def _wants_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    # Only whether the server answers in TLS counts, and nothing is sent to it.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def _context(tls: Tls) -> ssl.SSLContext:
    for option, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        if path is not None and not Path(path).is_file():
            msg = (
                f"zookeeper.tls.{option}: there is no file {path} on this machine. Put it there; executors need "
                "it too"
            )
            raise ZooKeeperConfigError(msg)
    try:
        # The machine's authorities are loaded only where no file is given.
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        msg = (
            f"zookeeper.tls.ca: {tls.ca} holds no certificates in PEM form ({error}). Give a PEM file of the "
            "authorities to trust"
        )
        raise ZooKeeperConfigError(msg) from error
    context.sslsocket_class = _ToldSocket
    context.check_hostname = tls.verify and tls.check_hostname
    if not tls.verify:
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        try:
            # OpenSSL would ask for a key's passphrase on the terminal.
            context.load_cert_chain(tls.cert, tls.key, password="")
        except (OSError, ValueError) as error:
            msg = (
                f"zookeeper.tls.cert: {tls.cert} and the key in {tls.key or tls.cert} cannot be used ({error}). "
                "Give a certificate and its key, without a passphrase, in PEM form"
            )
            raise ZooKeeperConfigError(msg) from error
    return context
