"""Changes shards: settled batches, and acks, fails and replays of other processes, and timeouts between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import msgspec

from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, ExternalNode, SettledNode
from kinesis_trident.checkpoint.model.replays import are_in_flight, find_replayed
from kinesis_trident.spout.planner.exhausted import letters_after
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.finished_batch import CommittedBatch
from kinesis_trident.spout.planner.settling.listing import Listed, take_in_listing, take_in_tips
from kinesis_trident.spout.planner.settling.settlement import InflightRules, settle_batch
from kinesis_trident.spout.planner.settling.shard_events import (
    BatchSettled,
    HomeUnit,
    Requested,
    ShardUnit,
    Tally,
    TimedOut,
)
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Sights
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import Keys, concatenate, find, keys_of_texts, merge_keys, unpack
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.requests import bury, cancel, replay

Asked = Mapping[str, ExternalNode]
"""Requests by name, in the order of their answers."""

Event = CommittedBatch | Requested | TimedOut | Listed | Sights | Shards | SettledNode
"""A batch; requests; time that has passed; a listing; what looks have seen of idle shards; all shards, as they were
read from ZooKeeper; or up to which txid batches count as settled, with nothing done."""

_REQUESTS_AT_A_TIME = 1_000
"""The number of other processes' nodes that one multi applies and removes; more would not fit."""


def step(
    shards: Shards, event: Event, rules: InflightRules, layout: Layout, now: int
) -> Iterator[HomeUnit | ShardUnit | BatchSettled]:
    """Yield what an event changes, in the order in which it is written.

    Shards that were read are judged anew: what bounds the blocked ones may be higher than in the last run.
    """
    match event:
        case CommittedBatch():
            yield settle_batch(shards, event, rules, layout, now)
        case Listed():
            yield from take_in_listing(shards, event, layout)
        case Sights():
            yield from take_in_tips(shards, event)
        case SettledNode(txid=txid, plan=plan):
            yield HomeUnit(replace(shards, settled=txid, settled_plan=plan), settled=event)
        case Requested(asked):
            for shard, some in asked.items():
                yield from _take_in(shards, shard, some, rules, layout, now)
        case TimedOut():
            yield from _time_out(shards, rules, layout, now)
        case Shards():
            yield HomeUnit(event)
            for shard, state in event.states.items():
                if not state.blocked or state.inflight is None:
                    continue
                blocked = rules.explain_block(len(state.dead) + len(state.waiting), state.held)
                if blocked != state.blocked:
                    inflight = msgspec.structs.replace(state.inflight, blocked=blocked)
                    yield ShardUnit(shard, replace(state, inflight=inflight))


def _time_out(shards: Shards, rules: InflightRules, layout: Layout, now: int) -> Iterator[ShardUnit]:
    for shard, state in shards.active.items():
        if not any(run.due <= now for run in state.pending):
            continue
        with name_in_errors(layout.inflight_of(shard)):
            before = rules.open_shard_of(state)
        open_shard, late = before.time_out(now, rules.fates(now))
        after = _state_after(state, open_shard, rules)
        changed = letters_after(shards.dead_letters.get(shard), after)
        what = "records were not acked in time and fail (TIMEOUT)"
        told = [f"shard {shard}: {late} {what}"]
        yield ShardUnit(shard, after, changed, tally=Tally(timed_out=late), told=told)


def _take_in(
    shards: Shards, shard: str, asked: Asked, rules: InflightRules, layout: Layout, now: int
) -> Iterator[ShardUnit]:
    state, letters = shards.states.get(shard), shards.dead_letters.get(shard)
    folder, names = layout.external_of(shard), list(asked)
    for start in range(0, len(names), _REQUESTS_AT_A_TIME):
        some = {name: asked[name] for name in names[start : start + _REQUESTS_AT_A_TIME]}
        if state is None or state.checkpoint is None:
            what = "requests are dropped"
            told = [] if start else [f"shard {shard} is gone, or never read: {len(names)} {what}"]
            yield ShardUnit(shard, None, consumed=list(some), told=told)
            continue
        with name_in_errors(layout.deadletters_of(shard)):
            taken, anew, known = sift_replays(some, state, letters)
        with name_in_errors(layout.inflight_of(shard)):
            open_shard = rules.open_shard_of(state)
        after, tally, unreadable, unknown, refused = apply_requests(open_shard, taken, now, rules)
        state = _state_after(state, after, rules)
        cancelled = [keys_of_texts(node.records) for node in taken.values() if node.op == "cancel"]
        changed = letters_after(letters, state, anew=anew, cancelled=merge_keys(cancelled), now=now)
        yield ShardUnit(
            shard,
            state,
            changed,
            (),
            tally,
            [name for name in some if name not in unreadable],
            {f"{folder}/{name}": f"{folder}/{name}: {why}" for name, why in unreadable.items()},
            [f"shard {shard}: {what}" for what in (*known, *unknown, *refused)],
            f"shard {shard}: {'; '.join(refused)}"[:1000] if refused else "",
        )
        letters = changed or letters


def _state_after(state: ShardState, after: OpenShard, rules: InflightRules) -> ShardState:
    """Return a shard once its open records are these; the stamps of its nodes stay the same."""
    assert state.checkpoint is not None, "a shard that was read has a checkpoint"
    safe, kept = after.safe, rules.keep(after, state.checkpoint.txid)
    checkpoint = msgspec.structs.replace(
        state.checkpoint,
        checkpoint=safe.sequence if safe else None,
        sub=safe.sub if safe else -1,
        held=kept.node.size,
    )
    return ShardState(state.start, checkpoint, kept.node, kept.records.held.records, kept)


def sift_replays(
    asked: Asked, state: ShardState, letters: DeadLettersNode | None
) -> tuple[Asked, Keys, list[str]]:
    """Leave out what was replayed before and is done since, unless somebody asks for it `again`.

    Returns:
        The requests that are left, by name; the records of replays that are not in flight yet, sorted; and sentences
        on those that are left out.
    """
    taken, told = dict(asked), list[str]()
    texts = {name: node.records for name, node in asked.items() if node.op == "replay"}
    named = {name: merge_keys([keys_of_texts(records)]) for name, records in texts.items()}
    anew = merge_keys(list(named.values()))
    anew = anew[~are_in_flight(anew, state.inflight, state.turns)]
    is_marked = find(find_replayed(letters), anew)[1]
    known, news = anew[is_marked], [anew[~is_marked]]
    for name, keys in named.items() if len(known) else ():
        are_known = find(known, keys)[1]
        if asked[name].again:
            news.append(keys[are_known])
        elif are_known.any():
            what = "were replayed before, and are left out: replay --again delivers them once more"
            told.append(f"{are_known.sum()} of the records to replay {what}")
            left = tuple(map(str, keys[~are_known].positions))
            taken[name] = msgspec.structs.replace(asked[name], records=left)
    return taken, merge_keys(news), told


def apply_requests(
    shard: OpenShard, asked: Asked, now: int, rules: InflightRules
) -> tuple[OpenShard, Tally, dict[str, str], list[str], list[str]]:
    """Apply requests in order. `now` is in epoch milliseconds; a reset makes a record wait for its timeout again.

    Returns:
        The shard after them, the counts of records, and the errors of unreadable requests by name, which were not
        applied. And sentences on records that were never read, and on those that people have asked for in vain.
    """
    tally, unreadable, never_read, refused = Tally(), dict[str, str](), list[str](), list[str]()
    if not rules.buries:
        left = [", ".join(node.records) for node in asked.values() if node.op == "bury"]
        what = (
            "are not dead-lettered, because that would stop a query with onExhausted=fail. Set deadLetter, or"
        )
        refused = [f"{records} {what} onExhausted=skip, and ask again" for records in left]
        asked = {name: node for name, node in asked.items() if node.op != "bury"}
    # All but fails and resets come together: many may be for one record each, and each would copy what the shard has.
    for (op, takes_done, attempt), some in groupby(
        asked.items(), lambda one: (one[1].op, one[1].takes_done, one[1].attempt)
    ):
        if op in {"replay", "cancel", "bury"}:
            positions = [RecordPosition.parse(text) for _, node in some for text in node.records]
            shard, left = _ask(shard, op, positions, now, takes_done=takes_done)
            refused += left
            continue
        named = list[tuple[Keys, str]]()
        for name, node in some:
            try:
                named.append((merge_keys([unpack(node.positions)]), node.reason))
            except OrderError as error:
                unreadable[name] = str(error)
        if op == "ack" and named:
            named = [(concatenate([keys for keys, _ in named]), "")]
        unknown = 0
        for keys, reason in named:
            if op == "ack":
                shard, counts = shard.ack(keys, attempt)
                tally = tally.add(Tally(counts.changed, 0, counts.late, counts.known, counts.unknown))
            elif op == "fail":
                shard, counts = shard.fail(keys, reason, rules.fates(now), attempt)
                tally = tally.add(Tally(0, *counts[:4], permanent=counts.permanent))
            else:
                shard, counts = shard.reset(keys, now + (rules.timeout or 0), attempt)
                tally = tally.add(Tally(done=counts.known, unknown=counts.unknown))
            unknown += counts.unknown
        if unknown:
            what = f"were never read: their positions are beyond {shard.high}"
            never_read.append(f"{unknown} of the records to {op} {what}")
    return shard, tally, unreadable, never_read, refused


def _ask(
    shard: OpenShard, op: str, positions: Sequence[RecordPosition], now: int, *, takes_done: bool
) -> tuple[OpenShard, list[str]]:
    """Return a shard once people have asked for records, or given some up; and a sentence on those that are refused."""
    if op == "cancel":
        return cancel(shard, positions), []
    if op == "bury":
        after, left = bury(shard, positions)
        what = "not dead-lettered, as no run that waits ends with"
    else:
        after, left = replay(shard, positions, now, takes_done=takes_done)
        what = (
            f"these records {'were not delivered' if takes_done else 'do not wait any more, and stay done'}:"
        )
    return after, [f"{what} {', '.join(map(str, left))}"] if left else []
