"""Reads the metrics of applications from ZooKeeper each time they are asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing

from prometheus_client import CollectorRegistry, generate_latest

from kinesis_trident.checkpoint.store.source_store import find_applications
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.kept_client import KeptClient
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.metrics.application import read_snapshot
from kinesis_trident.console.metrics.table import Readings, ReadingsCollector
from kinesis_trident.console.snapshot import take_snapshot
from kinesis_trident.console.target import Target, stores_of
from kinesis_trident.console.text import now_ms

log = logging.getLogger(__name__)


class ApplicationMetrics(ReadingsCollector):
    """Collects the metrics of applications; each collection reads ZooKeeper.

    What cannot be read has no samples, and `application_up` or `zookeeper_up` is 0. One connection serves all
    collections, until `close`.

    Without names in `applications`, all below the root are shown.
    """

    def __init__(self, zookeeper: ZooKeeperConfig, root: str, applications: Sequence[str] = ()) -> None:
        super().__init__(self.readings)
        self._zookeeper = zookeeper
        self._root = root
        self._applications = tuple(applications)
        self._client = KeptClient(zookeeper)
        # A scrape that does not end is not doubled by the next one.
        self._lock = threading.Lock()

    def readings(self) -> Readings:
        """Read all metrics."""
        with self._lock:
            readings = Readings()
            try:
                names = self._known()
            except KinesisTridentError as error:
                log.warning("%s", make_visible(str(error)))
                names = None
            readings.set("zookeeper_up", names is not None)
            for name in self._applications or names or ():
                readings.set("application_up", names is not None and self._read_one(readings, name), name)
        return readings

    def close(self) -> None:
        """Close the connection; a later collection opens another one."""
        with self._lock:
            self._client.close()

    def _known(self) -> list[str]:
        return find_applications(Session(self._client.get(), self._zookeeper.session_timeout), self._root)

    def _read_one(self, readings: Readings, application: str) -> bool:
        try:
            stores = stores_of(self._client.get(), Target(self._zookeeper, self._root, application))
            snapshots = [take_snapshot(store) for store in stores]
        except KinesisTridentError as error:
            # One that cannot be read hides no others.
            log.warning("application %r: %s", application, make_visible(str(error)))
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
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()
