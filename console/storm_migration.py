"""Migrates from and to a Storm spout: converts its checkpoints to ours, and ours to its."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.checkpoint.storm_migration import (
    StormStyle,
    export_storm,
    import_storm,
    seed_checkpoints,
)
from kinesis_trident.checkpoint.zookeeper.client import connect
from kinesis_trident.console.changes import note_request, refuse_running
from kinesis_trident.console.target import ConsoleError, Target, open_stores

__all__ = ["Storm", "export_checkpoints", "import_checkpoints"]


@dataclass(frozen=True, slots=True)
class Storm:
    """The place of a Storm spout's checkpoints: its layout, its prefix, and its topology if it has one."""

    style: StormStyle
    prefix: str
    topology: str = ""


def export_checkpoints(target: Target, storm: Storm, *, overwrite: bool) -> dict[str, str]:
    """Write an application's checkpoints as a Storm spout does.

    Returns:
        By shard the path written.

    Raises:
        ConsoleError: there is no such application or stream, it reads several and none is chosen, or it runs.
        MigrationError: the checkpoints cannot be expressed, or Storm's are further on.
    """
    with open_stores(target) as stores:
        if len(stores) > 1:
            streams = ", ".join(stream for store in stores for stream in streams_of(store))
            msg = f"application {target.application!r} reads several streams. Choose one with --stream ({streams})"
            raise ConsoleError(msg)
        (store,) = stores
        if store.layout.several:
            msg = (
                f"application {target.application!r} reads its streams together ({store.layout.base}), and their "
                "checkpoints are not written one by one. Export from an application that reads one stream"
            )
            raise ConsoleError(msg)
        refuse_running(store)
        written = export_storm(
            store, storm.style, prefix=storm.prefix, topology=storm.topology, overwrite=overwrite
        )
        note_request(store, f"export {len(written)} checkpoints to {storm.style} below {storm.prefix}")
        return written


def import_checkpoints(
    target: Target, storm: Storm, *, zookeeper: str | None, options: Mapping[str, str]
) -> dict[str, str]:
    """Let an application that has read nothing yet begin where a Storm spout stopped.

    Args:
        target: the new application; its stream is required.
        storm: the place of the spout's checkpoints.
        zookeeper: hosts of the ZooKeeper that the spout used, if it is another one.
        options: of the query, for the request of the stream's creation time.

    Returns:
        By shard the record after which the application will begin.

    Raises:
        ConsoleError: the application runs.
        MigrationError: it has read already, or there is nothing to import.
        SpoutError: Kinesis does not know the stream, or does not answer.
    """
    # Only here, because they load botocore and pyarrow, and the other commands must answer at once.
    from kinesis_trident.spout.kinesis.client import kinesis_client
    from kinesis_trident.spout.options.source import SourceOptions

    if target.stream is None:
        msg = "the stream is missing, but Storm's layouts are by stream. Give it with --stream"
        raise ConsoleError(msg)
    config = target.zookeeper
    given = {
        **options,
        "streamName": target.stream,
        "applicationName": target.application,
        "zookeeper.hosts": config.hosts,
    }
    created = kinesis_client(SourceOptions.parse(given)).describe(target.stream).created
    client = connect(config)
    try:
        where = connect(replace(config, hosts=zookeeper)) if zookeeper else client
        try:
            positions = import_storm(
                where, storm.style, prefix=storm.prefix, stream=target.stream, topology=storm.topology
            )
        finally:
            if where is not client:
                where.stop()
                where.close()
        layout = Layout(target.root, target.application, target.stream, created)
        store = SourceStore(client, layout, config.session_timeout)
        refuse_running(store)
        # Refuses an application that has already read, before its epoch is raised.
        seed_checkpoints(store, {}, epoch=0)
        epoch = store.epochs.raise_epoch(socket.gethostname(), os.getpid(), int(time.time() * 1000))
        seed_checkpoints(store, positions, epoch)
        note_request(store, f"import {len(positions)} checkpoints of {storm.style} from below {storm.prefix}")
        return {shard: str(position) for shard, position in sorted(positions.items())}
    finally:
        client.stop()
        client.close()
