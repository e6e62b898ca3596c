"""Nodes that belong together: what is missing where one is gone, or was put back from an older copy. Pure.

A run writes the nodes of a shard, and what ends a settling, so that each names a part of the others: where they
disagree, somebody else has deleted or replaced one, and to go on would read records again, or never deliver them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    InflightNode,
    SettledNode,
    ShardLineage,
    ShardsNode,
    StreamsNode,
)
from kinesis_trident.common.visible_text import count_noun

_NAMED = 3

_DONE_FROM_THE_START = "SHARD_END"
"""The position at which a shard begins that is never read, and has no checkpoint: `startingPosition` says so."""


def find_lost_lineage(
    layout: Layout, settled: SettledNode | None, lineage: ShardsNode | None, streams: StreamsNode | None
) -> str:
    """Return what is missing of the nodes that describe a home of which a batch is settled; empty if nothing is."""
    if settled is None:
        return ""
    if lineage is None:
        return (
            f"{layout.shards} does not exist, but {layout.settled} says that txid {settled.txid} is settled"
        )
    if layout.several and streams is None:
        return (
            f"{layout.streams} does not exist, but {layout.settled} says that txid {settled.txid} is settled"
        )
    return ""


def find_lost_shards(
    layout: Layout,
    settled: SettledNode | None,
    lineage: Mapping[str, ShardLineage],
    checkpoints: Mapping[str, CheckpointNode],
    inflight: Mapping[str, InflightNode],
) -> str:
    """Return what is missing of the nodes of shards, as a sentence without its end; empty if nothing is.

    What an earlier release has written counts nothing, so of its nodes less is found out.
    """
    return _find_uncounted(layout, settled, lineage, checkpoints) or _find_untold(
        layout, lineage, checkpoints, inflight
    )


def _find_uncounted(
    layout: Layout,
    settled: SettledNode | None,
    lineage: Mapping[str, ShardLineage],
    checkpoints: Mapping[str, CheckpointNode],
) -> str:
    """Return what `settled` counts and is not there."""
    last = max((node.txid for node in checkpoints.values()), default=0)
    txid = settled.txid if settled is not None else 0
    # A crash within a settling leaves stamps that are one above.
    if last > txid + 1:
        has = "does not exist" if settled is None else f"says that txid {txid} is settled"
        return f"{layout.settled} {has}, but a checkpoint bears txid {last}"
    if settled is not None:
        begun = sum(node.txid > 0 for node in checkpoints.values())
        gone, unread = max(0, settled.begun - begun), lineage.keys() - checkpoints.keys()
        # Those that the stream has dropped are not counted any more, but by a release that counts nothing.
        if gone and unread:
            where = _names(layout, unread)
            return f"{layout.settled} counts {settled.begun} checkpoints, and {begun} are there: look for {where}"
        stamped = {shard for shard, node in checkpoints.items() if node.txid >= txid}
        if len(stamped) + gone < settled.stamped:
            where = _names(layout, (shard for shard in checkpoints if shard not in stamped))
            return (
                f"{layout.settled} counts {settled.stamped} checkpoints of txid {txid}, and {len(stamped)} are there: "
                f"an older copy was put back of {where}"
            )
    return ""


def _find_untold(
    layout: Layout,
    lineage: Mapping[str, ShardLineage],
    checkpoints: Mapping[str, CheckpointNode],
    inflight: Mapping[str, InflightNode],
) -> str:
    """Return what other nodes of a shard tell of and is not there."""
    drained = sorted(
        shard
        for shard, node in lineage.items()
        if node.state == "drained" and node.start != _DONE_FROM_THE_START and shard not in checkpoints
    )
    if drained:
        return f"{layout.checkpoint_of(drained[0])} does not exist, but {layout.shards} says that it was read"
    for shard, held in inflight.items():
        if held.size and shard not in checkpoints:
            return (
                f"{layout.checkpoint_of(shard)} does not exist, but {layout.inflight_of(shard)} names records"
            )
    for shard, node in checkpoints.items():
        there = inflight[shard].size if shard in inflight else 0
        # A release that counts nothing may have written it last.
        if there < node.held and (shard not in inflight or inflight[shard].counted):
            has = f"names {count_noun(there, 'group')}" if shard in inflight else "does not exist"
            groups = count_noun(node.held, "group of neighbouring records", "groups of neighbouring records")
            return (
                f"{layout.inflight_of(shard)} {has}, but {layout.checkpoint_of(shard)} counts {groups} of the shard "
                "as not done"
            )
    return ""


def _names(layout: Layout, shards: Iterable[str]) -> str:
    """Return the checkpoints of some shards; their folder if there are none."""
    paths = [layout.checkpoint_of(shard) for shard in sorted(shards)]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(paths[:_NAMED]) or layout.checkpoints}{more}"
