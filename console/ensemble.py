"""The servers of a ZooKeeper that does not let anybody in, each tried by itself: which runs, and what is missing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

from kazoo.hosts import collect_hosts

from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.machine import Result

_ASK = b"srvr"
"""A server answers this word without a login, and without a quorum."""

_MOST = 4096


def try_servers(config: ZooKeeperConfig, seconds: float = 2.0) -> Iterator[Result]:
    """Ask each server of `config` what it is; yield a result for each, and one for all of them."""
    roles: list[str] = []
    # The chroot is of the connection, and kazoo mixes the hosts.
    for host, port in sorted(collect_hosts(config.hosts)[0]):
        name = f"server {host}:{port}"
        try:
            answer = _ask(host, port, seconds, is_plain=config.tls is None)
        except OSError as error:
            yield Result(
                name,
                "failed",
                f"does not answer: {error.strerror or error}",
                "start it, or mend the way to it",
            )
            continue
        role = next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")
        roles.append(role)
        if role:
            yield Result(name, "ok", f"runs, as {role}")
        elif config.tls is not None or not answer:
            yield Result(name, "skipped", "its port is open, and it does not say what it is")
        else:
            yield Result(name, "failed", "runs, and has no quorum", "start the other servers")
    if not any(roles):
        yield Result(
            "quorum",
            "failed",
            f"no server serves: {len(roles)} of those in --zookeeper can be reached",
            "more than half of the servers must run and reach each other; a query waits for that as long as its "
            "zookeeper.sessionTimeout, and goes on with its next start",
        )


def _ask(host: str, port: int, seconds: float, *, is_plain: bool) -> str:
    """Connect, and ask in plain text; an answer that does not come is empty.

    Raises:
        OSError: nothing listens there.
    """
    with closing(socket.create_connection((host, port), timeout=seconds)) as connection:
        if not is_plain:
            return ""
        connection.sendall(_ASK)
        try:
            return connection.recv(_MOST).decode(errors="replace")
        except TimeoutError:
            return ""
