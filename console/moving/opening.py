"""Opens what a move needs: the stream, the checkpoint of the other system, the home of the application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kazoo.client import KazooClient

from kinesis_trident.checkpoint.store.application_names import layout_of
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connected
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.folder import Folder, absolute_target
from kinesis_trident.console.moving.foreign import ForeignCheckpoint, ForeignTarget, System
from kinesis_trident.console.moving.kcl import KclTarget, read_kcl
from kinesis_trident.console.moving.offset_log import ends_in_folder, ends_in_table, read_offset_log
from kinesis_trident.console.moving.places import STORM, Places
from kinesis_trident.console.moving.storm import StormPaths, StormTarget, read_storm
from kinesis_trident.console.moving.tables import Table, dynamodb_client
from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.spout.kinesis import Kinesis, StreamInfo
from kinesis_trident.spout.kinesis.client import kinesis_client
from kinesis_trident.spout.options.source import SourceOptions


def kinesis_of(target: Target, stream: str, given: Mapping[str, str]) -> tuple[SourceOptions, Kinesis]:
    """Return the options of the query, of which `given` are those of the command, and its Kinesis.

    Raises:
        OptionsError, KinesisError: as those of the query.
    """
    options = SourceOptions.parse(
        {
            **given,
            "streamName": stream,
            "applicationName": target.application,
            "zookeeper.hosts": target.zookeeper.hosts,
        }
    )
    return options, kinesis_client(options)


def read_foreign(
    places: Places, config: ZooKeeperConfig, client: KazooClient, options: SourceOptions, info: StreamInfo
) -> ForeignCheckpoint:
    """Read the checkpoint that another system has of a stream; `client` is of our ZooKeeper.

    Raises:
        MigrationError: there is none, or it is of another system or stream.
    """
    if places.system in STORM:
        paths = _storm_paths(places, info.name)
        if places.storm_zookeeper is None:
            return read_storm(client, paths)
        with connected(replace(config, hosts=places.storm_zookeeper)) as other:
            return read_storm(other, paths)
    if places.system is System.KCL:
        return read_kcl(_table(places, options), info, places.time)
    checkpoint = Folder(absolute_target(str(places.checkpoint_location)))
    metadata = Folder(absolute_target(places.metadata_path)) if places.metadata_path else None
    ends = (
        ends_in_table(_table(places, options))
        if places.table
        else ends_in_folder(places.system, checkpoint, metadata)
    )
    return read_offset_log(places.system, checkpoint, info.name, ends, places.source)


def open_target(
    places: Places, target: Target, store: SourceStore, given: Mapping[str, str]
) -> ForeignTarget:
    """Return the place where another system is to go on; `given` as in `kinesis_of`.

    Raises:
        ConsoleError: the stream was created again.
        MigrationError: the place is not of that system.
    """
    stream = store.layout.stream
    if places.system in STORM:
        return StormTarget(store.client, _storm_paths(places, stream))
    options, kinesis = kinesis_of(target, stream, given)
    info = kinesis.describe(stream)
    if info.created != store.layout.created:
        msg = (
            f"{store.layout.base} is of a stream {stream!r} that was created at {store.layout.created}; the one of "
            f"that name now was created at {info.created}, and has other shards. There is nothing to hand over"
        )
        raise ConsoleError(msg)
    return KclTarget(_table(places, options), info, kinesis.list_shards(stream))


def new_home(client: KazooClient, target: Target, info: StreamInfo) -> SourceStore:
    """Return the home of a stream that is read alone, or will be, until a query that reads several takes it in.

    Raises:
        ConsoleError: the application reads the stream together with others already.
    """
    timeout = target.zookeeper.session_timeout
    several = layout_of(Session(client, timeout), target.root, target.application)
    shared = SourceStore(client, several, timeout)
    known = shared.streams.get()
    if known is not None and info.name in known.streams:
        msg = (
            f"application {target.application!r} reads stream {info.name!r} together with others "
            f"({shared.layout.base}), and goes on from there. Import under another applicationName"
        )
        raise ConsoleError(msg)
    return SourceStore(client, replace(several, stream=info.name, created=info.created), timeout)


def home_of_one(store: SourceStore) -> SourceStore:
    """Return a home of one stream.

    Raises:
        ConsoleError: it is that of several.
    """
    if store.layout.several:
        msg = (
            f"application {store.layout.application!r} reads its streams together ({store.layout.base}), and "
            "their checkpoints are not written one by one. Export from an application that reads one stream"
        )
        raise ConsoleError(msg)
    return store


def _storm_paths(places: Places, stream: str) -> StormPaths:
    return StormPaths(places.system, str(places.prefix), stream, places.topology or "")


def _table(places: Places, options: SourceOptions) -> Table:
    return Table(
        dynamodb_client(options, places.dynamodb_region, places.dynamodb_endpoint), str(places.table)
    )
