"""Changes shards between two batches: the module as it was before `step`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec

from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode, ExternalNode
from kinesis_trident.checkpoint.model.replays import (
    LISTED,
    are_in_flight,
    find_replayed,
    mark_asked,
    settle_replays,
    take_back,
)
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.planner.settling.settlement import InflightRules
from kinesis_trident.spout.planner.settling.shard_events import Tally
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import (
    NO_KEYS,
    Keys,
    concatenate,
    find,
    keys_of_texts,
    merge_keys,
    unpack,
)
from kinesis_trident.tracker.records import RecordPosition
from kinesis_trident.tracker.requests import bury, cancel, replay

log = logging.getLogger(__name__)

_REQUESTS_AT_A_TIME = 1_000
"""The number of other processes' nodes that one multi applies and removes; more would not fit."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change of one shard between two batches, to be written.

    Attributes:
        shard: its name.
        state: the shard after it; None if it was never read.
        dead_letters: its new ones; None if they have not changed.
        tally: the counts of the records.
        consumed: the names of the requests that it includes; they are removed with it.
        unreadable: the errors of requests that cannot be applied, by name.
        refused: sentences on what people have asked for, and is not done.
    """

    shard: str
    state: ShardState | None
    dead_letters: DeadLettersNode | None = None
    tally: Tally = field(default_factory=Tally)
    consumed: Sequence[str] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    refused: Sequence[str] = ()


class Amender:
    """Says how the shards of a source change. Pure, but for the log."""

    def __init__(self, layout: Layout, rules: InflightRules) -> None:
        self._layout = layout
        self._rules = rules

    def take_in(
        self, shards: Shards, asked: Mapping[str, Mapping[str, ExternalNode]], now: int
    ) -> Iterator[Amendment]:
        """Take in what other processes ask for: replays, acks and fails, by shard and name."""
        for shard, requests in asked.items():
            state, letters = shards.states.get(shard), shards.dead_letters.get(shard)
            names = list(requests)
            if state is None or state.checkpoint is None:
                log.warning("shard %s is gone, or never read: %d requests are dropped", shard, len(names))
            for start in range(0, len(names), _REQUESTS_AT_A_TIME):
                some = {name: requests[name] for name in names[start : start + _REQUESTS_AT_A_TIME]}
                if state is None or state.checkpoint is None:
                    yield Amendment(shard, None, consumed=list(some))
                    continue
                refused = list[str]()
                taken = some if self._rules.buries else _leave_out_burials(some, refused)
                with name_in_errors(self._layout.deadletters_of(shard)):
                    taken, anew = sift_replays(shard, taken, state, letters)
                before = self._open_shard(shard, state)
                after, tally, unreadable = apply_requests(shard, before, taken, now, self._rules, refused)
                for what in refused:
                    log.warning("shard %s: %s", shard, what)
                state = self._state_after(state, after)
                cancelled = [keys_of_texts(node.records) for node in taken.values() if node.op == "cancel"]
                changed = letters_after(letters, state, anew, now, merge_keys(cancelled))
                consumed = [name for name in some if name not in unreadable]
                yield Amendment(shard, state, changed, tally, consumed, unreadable, refused)
                letters = changed or letters

    def unblock(self, shards: Shards) -> Iterator[Amendment]:
        """Judge the blocked shards anew, at a start: what bounds them may be higher than in the last run."""
        for shard, state in shards.states.items():
            if not state.blocked or state.inflight is None:
                continue
            blocked = self._rules.explain_block(len(state.dead) + len(state.waiting), state.held)
            if blocked != state.blocked:
                inflight = msgspec.structs.replace(state.inflight, blocked=blocked)
                yield Amendment(shard, replace(state, inflight=inflight))

    def time_out(self, shards: Shards, now: int) -> Iterator[Amendment]:
        """Fail the records of the streams read now that nobody has acked in time."""
        for shard, state in shards.active.items():
            if not any(run.due <= now for run in state.pending):
                continue
            open_shard, late = self._open_shard(shard, state).time_out(now, self._rules.fates(now))
            log.warning("shard %s: %d records were not acked in time and fail (TIMEOUT)", shard, late)
            after = self._state_after(state, open_shard)
            changed = letters_after(shards.dead_letters.get(shard), after)
            yield Amendment(shard, after, changed, Tally(timed_out=late))

    def _open_shard(self, shard: str, state: ShardState) -> OpenShard:
        with name_in_errors(self._layout.inflight_of(shard)):
            return self._rules.open_shard_of(state)

    def _state_after(self, state: ShardState, after: OpenShard) -> ShardState:
        """Return a shard once its open records are these; the stamps of its nodes stay the same."""
        assert state.checkpoint is not None, "a shard that was read has a checkpoint"
        safe, kept = after.safe, self._rules.keep(after, state.checkpoint.txid)
        checkpoint = msgspec.structs.replace(
            state.checkpoint,
            checkpoint=safe.sequence if safe else None,
            sub=safe.sub if safe else -1,
            held=kept.node.size,
        )
        return ShardState(state.start, checkpoint, kept.node, kept.records.held.records, kept)


def letters_after(
    before: DeadLettersNode | None,
    state: ShardState,
    anew: Keys = NO_KEYS,
    now: int = 0,
    cancelled: Keys = NO_KEYS,
) -> DeadLettersNode | None:
    """Return a shard's dead letters once it is at `state`; None if they have not changed.

    `anew`: the done records that somebody has asked for, which come again as of `now`; `cancelled`: those that do not.
    """
    node, inflight = before, state.inflight
    if node is not None and node.replays and inflight is not None:
        node = take_back(node, cancelled, inflight, state.turns)
        node = settle_replays(node, inflight, state.turns, (), inflight.txid)
    if len(anew):
        # A request may name records that never were.
        node = node or DeadLettersNode(count=0, target="")
        node = mark_asked(node, anew[are_in_flight(anew, inflight, state.turns)], now)
    return node if node is not before else None


def sift_replays(
    shard: str, asked: Mapping[str, ExternalNode], state: ShardState, letters: DeadLettersNode | None
) -> tuple[dict[str, ExternalNode], Keys]:
    """Leave out what was replayed before and is done since, unless somebody asks for it `again`.

    Returns:
        The requests that are left, by name, and the records of replays that are not in flight yet, sorted.
    """
    taken = dict(asked)
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
            log.warning("shard %s: %d of the records to replay %s", shard, int(are_known.sum()), what)
            left = tuple(map(str, keys[~are_known].positions))
            taken[name] = msgspec.structs.replace(asked[name], records=left)
    return taken, merge_keys(news)


def _leave_out_burials(asked: Mapping[str, ExternalNode], refused: list[str]) -> dict[str, ExternalNode]:
    refused += [
        f"{', '.join(node.records)} are not dead-lettered, because that would stop a query with onExhausted=fail. Set "
        "deadLetter, or onExhausted=skip, and ask again"
        for node in asked.values()
        if node.op == "bury"
    ]
    return {name: node for name, node in asked.items() if node.op != "bury"}


def apply_requests(
    shard: str,
    before: OpenShard,
    asked: Mapping[str, ExternalNode],
    now: int,
    rules: InflightRules,
    refused: list[str],
) -> tuple[OpenShard, Tally, dict[str, str]]:
    """Apply requests in order. `now` is in epoch milliseconds; a reset makes a record wait for its timeout again.

    `refused` gets sentences on what is not done.

    Returns:
        The shard after them, the counts of records, and the errors of unreadable requests by name. Those were not
        applied.
    """
    after, tally, unreadable = before, Tally(), dict[str, str]()
    # All but fails and resets come together: many may be for one record each, and each would copy what the shard has.
    for (op, takes_done, attempt), some in groupby(
        asked.items(), lambda one: (one[1].op, one[1].takes_done, one[1].attempt)
    ):
        if op in {"replay", "cancel", "bury"}:
            positions = [RecordPosition.parse(text) for _, node in some for text in node.records]
            after, left = _ask(after, op, positions, now, takes_done=takes_done)
            refused += left
            continue
        unknown, acked = 0, list[Keys]()
        for name, node in some:
            try:
                keys = merge_keys([unpack(node.positions)])
            except OrderError as error:
                unreadable[name] = str(error)
                continue
            if op == "ack":
                acked.append(keys)
                continue
            if op == "reset":
                after, counts = after.reset(keys, now + (rules.timeout or 0), attempt)
                tally = tally.add(Tally(done=counts.known, unknown=counts.unknown))
            else:
                after, counts = after.fail(keys, node.reason, rules.fates(now), attempt)
                tally = tally.add(Tally(0, *counts[:4], 0, counts.permanent))
            unknown += counts.unknown
        if acked:
            after, counts = after.ack(concatenate(acked), attempt)
            tally = tally.add(Tally(counts.changed, 0, counts.late, counts.known, counts.unknown))
            unknown = counts.unknown
        if unknown:
            what = (
                f"{unknown} of the records to {op} were never read: their positions are beyond {after.high}"
            )
            log.warning("shard %s: %s", shard, what)
    return after, tally, unreadable


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
        what = "were not delivered" if takes_done else "do not wait any more, and stay done"
        what = f"these records {what}:"
    return after, [f"{what} {', '.join(map(str, left))}"] if left else []


def letters_of_batch(
    before: DeadLettersNode | None,
    after: ShardState,
    letters: Sequence[DeadLetterRecord],
    txid: int,
    target: str,
) -> DeadLettersNode | None:
    """Return a shard's dead letters after a batch; None if they have not changed."""
    node = before
    if node is not None and node.replays:
        node = settle_replays(node, after.inflight, after.turns, letters, txid)
    if letters:
        node = DeadLettersNode(
            count=(node.count if node else 0) + sum(letter.count for letter in letters),
            target=target,
            last=(*(node.last if node else ()), *letters)[-LISTED:],
            replays=node.replays if node else (),
        )
    return node if node is not before else None
