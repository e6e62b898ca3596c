"""TLS to ZooKeeper: which authorities count, and the check that the server is the one that was asked for.

kazoo always trusts the machine's authorities beside the given one, and checks no host name unless told to. So its
connections are made here, through the handler that it lets callers choose.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from kinesis_trident.checkpoint.errors import ZooKeeperConfigError

__all__ = ["Tls", "TlsHandler"]


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server proves who it is, and what this client shows.

    Attributes:
        ca: PEM file of the authorities to trust, and no others; the machine's own where None.
        cert: PEM file of the certificate to show.
        key: PEM file of its key; None where `cert` holds it.
        verify: False accepts any certificate, of any server.
        check_hostname: the certificate must name the host as `hosts` does.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True
    check_hostname: bool = True


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's own handler, but for connections.

    Args:
        tls: read again for each connection, so that a certificate may be renewed beneath a running query.

    Attributes:
        refusal: why the newest connection was not made; empty when it was.

    Raises:
        ZooKeeperConfigError: a file is missing, or does not hold what it should.
    """

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls
        self.refusal = ""
        _context(tls)

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Connect to `address`; `hostname` is the name that the certificate is to hold.

        Raises:
            OSError: the server does not answer, or is not the one it should be.
        """
        try:
            context = _context(self._tls)
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # The deadline holds for the handshake, too.
                connection = context.wrap_socket(plain, server_hostname=hostname or address[0])
            except BaseException:
                plain.close()
                raise
        except ZooKeeperConfigError as error:
            self.refusal = str(error)
            # kazoo tries again after an OSError, and ends its thread after anything else.
            raise OSError(self.refusal) from error
        except OSError as error:
            self.refusal = f"{hostname or address[0]}:{address[1]}: {error}"
            raise
        self.refusal = ""
        return connection


def _context(tls: Tls) -> ssl.SSLContext:
    for option, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        if path is not None and not Path(path).is_file():
            msg = f"zookeeper.tls.{option}: no file {path} on this machine; executors need it too"
            raise ZooKeeperConfigError(msg)
    try:
        # The machine's authorities are loaded only where no file is given.
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        msg = f"zookeeper.tls.ca: {tls.ca} holds no certificates in PEM form ({error})"
        raise ZooKeeperConfigError(msg) from error
    context.check_hostname = tls.verify and tls.check_hostname
    if not tls.verify:
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        try:
            # A key with a passphrase would be asked for on the terminal.
            context.load_cert_chain(tls.cert, tls.key, password="")
        except (OSError, ValueError) as error:
            msg = (
                f"zookeeper.tls.cert: {tls.cert} and the key in {tls.key or tls.cert} cannot be used ({error}): give "
                "a certificate and its key, without a passphrase, in PEM form"
            )
            raise ZooKeeperConfigError(msg) from error
    return context
