"""Reads the metrics of applications from ZooKeeper each time they are asked for, as text or over HTTP."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from wsgiref.simple_server import WSGIServer

from kazoo.client import KazooClient
from prometheus_client import CollectorRegistry, generate_latest, start_wsgi_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kinesis_trident.checkpoint.store.source_store import find_applications
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect, disconnect
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.table import Readings
from kinesis_trident.console.snapshot import take_snapshot
from kinesis_trident.console.target import ConsoleError, Target, stores_of
from kinesis_trident.console.text import now_ms

_PORT = re.compile("[0-9]{1,5}")

log = logging.getLogger(__name__)


class ApplicationMetrics(Collector):
    """Collects the metrics of applications; each collection reads ZooKeeper.

    What cannot be read has no samples, and `application_up` or `zookeeper_up` is 0. One connection serves all
    collections, until `close`.

    Without names in `applications`, all below the root are shown.
    """

    def __init__(self, zookeeper: ZooKeeperConfig, root: str, applications: Sequence[str] = ()) -> None:
        self._zookeeper = zookeeper
        self._root = root
        self._applications = tuple(applications)
        self._client: KazooClient | None = None
        # A scrape that does not end is not doubled by the next one.
        self._lock = threading.Lock()

    def describe(self) -> Iterator[Family]:
        """Yield nothing: ZooKeeper is not read when the collector is registered."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """Yield all metrics."""
        with self._lock:
            readings = Readings()
            try:
                names = self._known()
            except KinesisTridentError as error:
                log.warning("%s", error)
                names = None
            readings.set("zookeeper_up", names is not None)
            for name in self._applications or names or ():
                readings.set("application_up", names is not None and self._read(readings, name), name)
        yield from readings.families()

    def close(self) -> None:
        """Close the connection; a later collection opens another one."""
        with self._lock:
            if self._client is not None:
                disconnect(self._client)
                self._client = None

    def _connect(self) -> KazooClient:
        if self._client is None:
            self._client = connect(self._zookeeper)
        return self._client

    def _known(self) -> list[str]:
        return find_applications(Session(self._connect(), self._zookeeper.session_timeout), self._root)

    def _read(self, readings: Readings, application: str) -> bool:
        try:
            stores = stores_of(self._connect(), Target(self._zookeeper, self._root, application))
            snapshots = [take_snapshot(store) for store in stores]
        except KinesisTridentError as error:
            # One that cannot be read hides no others.
            log.warning("application %r: %s", application, error)
            return False
        now = now_ms()
        for snapshot in snapshots:
            read_snapshot(readings, snapshot, now)
        return not any(snapshot.problems for snapshot in snapshots)


def metrics_text(zookeeper: ZooKeeperConfig, root: str, applications: Sequence[str] = ()) -> str:
    """Return the metrics of applications, all below the root by default, in Prometheus' text format.

    A web server gives it the type `prometheus_client.CONTENT_TYPE_LATEST`.
    """
    with closing(ApplicationMetrics(zookeeper, root, applications)) as metrics:
        return text_of(metrics)


def text_of(metrics: ApplicationMetrics) -> str:
    """Return what a collector collects now, in Prometheus' text format."""
    return generate_latest(_registry(metrics)).decode()


def serve_metrics(
    zookeeper: ZooKeeperConfig, root: str, applications: Sequence[str], listen: str
) -> tuple[WSGIServer, threading.Thread]:
    """Serve the metrics over HTTP in another thread; each request reads ZooKeeper.

    `listen` is `host:port`; port 0 chooses a free one. The others are as in `ApplicationMetrics`.

    Returns:
        The server, whose `server_address` is where it listens, and its thread.

    Raises:
        ConsoleError: the address is not one, or cannot be used.
    """
    host, port = address_of(listen)
    try:
        return start_wsgi_server(port, host, _registry(ApplicationMetrics(zookeeper, root, applications)))
    except OSError as error:
        msg = f"cannot listen at {listen}: {error}. Give --listen another address"
        raise ConsoleError(msg) from None


def address_of(listen: str) -> tuple[str, int]:
    """Return host and port of an address.

    Raises:
        ConsoleError: it is not `host:port`.
    """
    host, colon, port = listen.rpartition(":")
    if not (host and colon and _PORT.fullmatch(port) and int(port) < 2**16):
        msg = f"--listen {listen[:200]!r} is not an address. Give host:port, as 127.0.0.1:9464 or [::1]:9464"
        raise ConsoleError(msg)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _registry(metrics: ApplicationMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry
