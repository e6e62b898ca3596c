"""TLS to ZooKeeper: the trusted authorities, and the check of the server's identity.

kazoo always trusts the machine's authorities in addition to the given one, and does not check host names by
default. So its connections are made here, through the handler that callers may choose.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from kinesis_trident.checkpoint.errors import ZooKeeperConfigError


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
    """kazoo's handler, with its own way to connect.

    Args:
        tls: read again for each connection, so that a certificate may be renewed while a query runs.

    Raises:
        ZooKeeperConfigError: a file is missing, or has the wrong content.
    """

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls
        self._refusals: dict[str, str] = {}
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
            self._refusals[where] = str(error)
            # kazoo retries after an OSError; any other error ends its thread.
            raise OSError(str(error)) from error
        except OSError as error:
            self._refusals[where] = f"{where}: {error}"
            raise
        self._refusals.clear()
        return connection


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
