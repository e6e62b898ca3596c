"""Chooses the home of a source's state: that of its one stream, or the one that several streams share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace as replace_fields
from functools import partial

from kazoo.client import KazooClient
from msgspec.structs import replace

from kinesis_trident.checkpoint.errors import HomeError, ZooKeeperAccessError
from kinesis_trident.checkpoint.model.home import HOME, Joining
from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    InflightNode,
    PastNode,
    SettledNode,
    ShardsNode,
    StreamsNode,
)
from kinesis_trident.checkpoint.store.application_names import layout_of
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_applications, find_layouts
from kinesis_trident.checkpoint.zookeeper.client import config_of, session_timeout
from kinesis_trident.checkpoint.zookeeper.command_line import command_line
from kinesis_trident.checkpoint.zookeeper.session import Session


def find_home(client: KazooClient, root: str, application: str, streams: Mapping[str, int]) -> Layout:
    """Return the layout of a source that reads `streams`, name to creation time in epoch milliseconds.

    A stream that was once read together with others stays in their shared home.

    Raises:
        RenamedError: the application has another name now.
        CheckpointError: ZooKeeper does not answer, or a node is corrupt.
    """
    several = layout_of(Session(client, session_timeout(client)), root, application)
    if len(streams) > 1:
        return several
    ((stream, created),) = streams.items()
    known = SourceStore(client, several).streams.get()
    return (
        several
        if known is not None and stream in known.streams
        else replace_fields(several, stream=stream, created=created)
    )


def rename_command(home: SourceStore, digest: str) -> str:
    """Return the line that gives this application's name to another one below its root, by its `Layout.digest`."""
    layout, session = home.layout, Session(home.client, session_timeout(home.client))
    known = "OLD"
    for name in find_applications(session, layout.root):
        # One that only another login may read is not meant.
        with suppress(ZooKeeperAccessError):
            if layout_of(session, layout.root, name).digest == digest:
                known = name
                break
    where = config_of(home.client)
    return command_line(where, layout.root, "rename", known, layout.application)


def past_of(home: SourceStore, streams: Mapping[str, int]) -> PastNode:
    """Return what was used in the homes whose streams this one takes over: read alone, or since created again.

    `streams`: those that are read now, name to creation time. A sink knows batches by txid and epoch, not by home.
    """
    layout = home.layout
    node = home.streams.get() if layout.several else None
    kept = node.streams if node is not None else {}
    taken = {stream for stream, created in streams.items() if kept.get(stream) != created}
    session = Session(home.client, session_timeout(home.client))
    epoch = txid = 0
    try:
        layouts = find_layouts(session, layout.root, layout.application)
    except ZooKeeperAccessError:
        # The takeover that follows names the node that belongs to another login.
        layouts = []
    for other in layouts:
        if other.stream not in taken or (not layout.several and other.created >= layout.created):
            continue
        used = highest_used_in(SourceStore(home.client, other).open_for_looking(lambda _: None))
        epoch, txid = max(epoch, used.epoch), max(txid, used.txid)
    return PastNode(epoch=epoch, txid=txid, lost_upto=0)


def close_left_homes(home: SourceStore, streams: Mapping[str, int], epoch: int) -> dict[str, int]:
    """Close the homes of streams that were created again to requests, which nobody reads there any more.

    Returns:
        The number of requests that were left in each, by the stream.

    Raises:
        FencedError: a newer run has taken over.
    """
    session = Session(home.client, session_timeout(home.client))
    found: dict[str, int] = {}
    with suppress(ZooKeeperAccessError):
        for other in find_layouts(session, home.layout.root, home.layout.application):
            if not other.several and other.created < streams.get(other.stream, 0):
                left = home.external.close_other(SourceStore(home.client, other).external, epoch)
                found[other.stream] = found.get(other.stream, 0) + left
    return found


def highest_used_in(store: SourceStore) -> PastNode:
    """Return the highest epoch and txid of a home: of its runs, its batches, and of what it took over."""
    run, settled, past = store.epochs.newest_run(), store.batches.settled(), store.epochs.past()
    epoch = max(past.epoch, run[0] if run is not None else 0)
    # Where `settled` was lost, the stamps of the shards show it.
    last = (
        [settled.txid] if settled is not None else [one.txid for one in store.shards.checkpoints().values()]
    )
    txid = max(0, past.txid, *last, *store.batches.txids())
    return PastNode(epoch=epoch, txid=txid, lost_upto=0)


def merge_into_shared_home(
    home: SourceStore,
    client: KazooClient,
    streams: Mapping[str, int],
    epoch: int,
    host: str,
    pid: int,
    now: int,
) -> dict[str, int]:
    """Merge the states of all `streams` into their shared home; return the creation times of all streams there.

    Raises:
        HomeError: a batch of a stream is not settled, or records of it are not acked (`ackMode=explicit`).
        FencedError: a newer run has taken over.
    """
    node = home.streams.get()
    known = dict(node.streams) if node else {}
    layout = home.layout
    alone = {
        stream: SourceStore(client, replace_fields(layout, stream=stream, created=created))
        for stream, created in streams.items()
        if known.get(stream) != created
    }
    begun = {
        stream: store
        for stream, store in alone.items()
        if store.shards.lineage() is not None or store.streams.start(stream, streams[stream]) is not None
    }
    # All before the first one is adopted: a stream that goes on alone after that would be read twice.
    for store in begun.values():
        store.epochs.raise_epoch(host, pid, now)
        _check_settled(store)
    for stream, store in begun.items():
        adopt_stream_state(home, epoch, store)
        known[stream] = streams[stream]
        home.streams.put(StreamsNode(streams=known, active=tuple(sorted(known.keys() & streams))), epoch)
    known |= streams
    home.streams.put(StreamsNode(streams=known, active=tuple(sorted(streams))), epoch)
    return known


def _check_settled(alone: SourceStore) -> None:
    """Refuse a stream of which a batch is not settled, or records are not acked."""
    theirs = alone.batches.settled()
    txid = theirs.txid if theirs else 0
    batch = alone.batches.newest()
    if batch is not None and batch.plan.txid > txid:
        msg = (
            f"stream {alone.layout.stream!r} was read alone until now, and its txid {batch.plan.txid} is not "
            f"settled ({alone.layout.batches}). Start the query once more with this stream alone, and end it with "
            "kinesis_trident.stop(query), which settles its last batch; then read it together with others"
        )
        raise HomeError(msg)
    inflight = alone.shards.inflight()
    unacked = sum(run.count for node in inflight.values() for run in node.pending)
    if unacked:
        msg = (
            f"stream {alone.layout.stream!r} was read alone until now, and {unacked} of its records are not acked "
            f"({alone.layout.inflight}). Start the query once more with this stream alone, ack or fail them, and "
            "end it with kinesis_trident.stop(query); then read it together with others"
        )
        raise HomeError(msg)


def adopt_stream_state(home: SourceStore, epoch: int, alone: SourceStore) -> None:
    """Adopt the state of a stream that was read alone, and whose runs are fenced, into the shared home.

    `HOME` says for each node what becomes of it. It may be repeated after a crash; the nodes that stay are not read
    again.

    Raises:
        FencedError: a newer run has taken over.
    """
    for joining in dict.fromkeys(spec.joining for spec in HOME):
        if joining in _ADOPTIONS:
            _ADOPTIONS[joining](home, epoch, alone)


def _name_in(home: SourceStore, alone: SourceStore, shard: str) -> str:
    """Return the name in the shared home of a shard of a stream that was read alone."""
    return home.layout.name_of(ShardKey(alone.layout.stream, alone.layout.created, shard))


def _adopt_start(home: SourceStore, epoch: int, alone: SourceStore) -> None:
    stream, created = alone.layout.stream, alone.layout.created
    start = alone.streams.start(stream, created)
    if start is not None:
        home.streams.put_start(stream, created, start, epoch)


def _adopt_requests(home: SourceStore, epoch: int, alone: SourceStore) -> None:
    home.external.adopt(alone.external, partial(_name_in, home, alone), epoch)


def _adopt_pauses(home: SourceStore, epoch: int, alone: SourceStore) -> None:
    home.pauses.adopt(alone.pauses, partial(_name_in, home, alone), epoch)


def _adopt_shards(home: SourceStore, epoch: int, alone: SourceStore) -> None:
    """Adopt checkpoints, retries, dead letters and the lineage.

    They are stamped with the newest settled txid here, or, if nothing is settled here yet, with that of the stream, so
    that its Spark checkpoint stays valid.
    """
    theirs, lineage, inflight = alone.batches.settled(), alone.shards.lineage(), alone.shards.inflight()
    if lineage is None:
        return
    ours = home.batches.settled()
    # One that was begun, and settled nothing, leaves nothing to go on from.
    settled = (ours if ours is not None and ours.txid else theirs) or ours or SettledNode(txid=0, plan="")
    names = {
        shard: _name_in(home, alone, shard)
        for shard in {*lineage.shards, *alone.shards.checkpoints(), *inflight}
    }
    updates: dict[str, tuple[CheckpointNode, InflightNode | None]] = {}
    for shard, node in alone.shards.checkpoints().items():
        held = inflight.get(shard)
        updates[names[shard]] = (
            replace(node, txid=settled.txid),
            # The pins stay behind: nothing pends on them, and what waits is known as whole runs without.
            replace(held, txid=settled.txid, turns=()) if held else None,
        )
    known = home.shards.lineage()
    merged = dict(known.shards) if known else {}
    for shard, place in lineage.shards.items():
        parents = tuple(names.get(parent, parent) for parent in place.parents)
        merged[names[shard]] = replace(place, parents=parents)
    dead = alone.shards.dead_letters()
    letters = {names[shard]: node for shard, node in dead.items() if names.get(shard) in updates}
    home.shards.settle(updates, letters, ShardsNode(shards=merged), settled, epoch)
    if PAST_RETENTION in dead:
        home.shards.forget((), {_name_in(home, alone, PAST_RETENTION): dead[PAST_RETENTION]}, epoch)


_ADOPTIONS: dict[Joining, Callable[[SourceStore, int, SourceStore], None]] = {
    Joining.STARTS: _adopt_start,
    Joining.SHARDS: _adopt_shards,
    Joining.REQUESTS: _adopt_requests,
    Joining.PAUSES: _adopt_pauses,
}
"""By what becomes of a node: how it is adopted; what is not here stays, or was seen to before."""
