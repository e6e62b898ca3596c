"""Plans a batch: which shards it reads, and which failed records it delivers again. Pure.

Spark logs the plan as the batch's offset, and shows it in its progress. So an offset names the runs that the batch
delivers again, as many as fit, and ZooKeeper has the reasons of their failures. The plan that is stored in ZooKeeper
has more of them: nobody has seen a row of a batch whose plan is not stored, so if only Spark has it, the others come
with a later one. Other waiting runs matter only if ZooKeeper's data is lost: if they do not fit, the offset has the
position from which a shard is then read again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, Plan
from kinesis_trident.spout.planner.shards.retry_order import Chains
from kinesis_trident.spout.positions import At, Position, parse_position
from kinesis_trident.tracker.clipping import clip, clip_whole
from kinesis_trident.tracker.open_shard import OpenShard
from kinesis_trident.tracker.position_keys import Keys
from kinesis_trident.tracker.records import PendingRun, RecordPosition, Run, begin_of

MAX_DUE_RUNS = 1000
"""The maximum of runs of one shard in a plan; the others are due in the next plan."""

RUNS_A_SHARD = 65_536
"""The maximum of failed runs of one shard, whatever `maxRetryingRecords` says: 64 bytes each, 4 MiB in total.

It applies within one turn too: every second new record can be a separate run.
"""

_KIB = 1024
_NO_ORDER = Chains()

STORED_BYTES = 400 * _KIB
"""The bytes for the runs that a plan in ZooKeeper delivers again."""


def due_bytes(shards: int) -> int:
    """Return the bytes for the runs that a plan of so many shards delivers again: some hundred runs a shard."""
    return min(max(16 * _KIB, shards * _KIB), 128 * _KIB)


def waiting_bytes(shards: int) -> int:
    """Return the bytes for the other waiting runs in a plan of so many shards."""
    return due_bytes(shards) // 2


@dataclass(frozen=True, slots=True)
class KeptShard:
    """The node of the records of a shard in flight, and the value that it was made of: nobody reads it again."""

    node: InflightNode
    records: OpenShard = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ShardState:
    """The settled state of one shard: its two nodes, and its start position if it has none yet.

    `turns`: the positions of the rows of the batches that `inflight` names, by txid. `kept`: what `inflight` was made
    of, if this process has made it. `position`: the start of the next turn. `retrying`: the number of records that wait
    for a retry; `held`: that of all that are read and not done.
    """

    start: Position
    checkpoint: CheckpointNode | None = None
    inflight: InflightNode | None = None
    turns: Mapping[int, Keys] = field(default_factory=dict, compare=False)
    kept: KeptShard | None = field(default=None, compare=False, repr=False)
    position: Position = field(init=False, compare=False, repr=False)
    retrying: int = field(init=False, compare=False, repr=False)
    held: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Used several times per plan, for very many shards, and of very many runs.
        at = parse_position(self.checkpoint.position) if self.checkpoint else self.start
        retrying = sum([run.count for run in self.waiting])
        if self.kept is not None and not (
            self.kept.node is self.inflight and self.kept.records.safe == self.safe
        ):
            # The state was made from another one.
            object.__setattr__(self, "kept", None)
        object.__setattr__(self, "position", at)
        object.__setattr__(self, "retrying", retrying)
        object.__setattr__(self, "held", retrying + self.unacked + sum([run.count for run in self.dead]))

    @property
    def begun(self) -> bool:
        """Return whether the shard was read; otherwise a checkpoint only records that the shard was seen empty."""
        node = self.checkpoint
        return node is not None and (node.txid > 0 or node.checkpoint is not None)

    @property
    def safe(self) -> RecordPosition | None:
        """Return the safe checkpoint: everything up to this record is done; None before the first."""
        node = self.checkpoint
        return RecordPosition(node.checkpoint, node.sub) if node and node.checkpoint else None

    @property
    def waiting(self) -> tuple[Run, ...]:
        """Return the failed runs that wait for a retry."""
        return self.inflight.waiting if self.inflight else ()

    @property
    def dead(self) -> tuple[Run, ...]:
        """Return the runs that go to the dead letter."""
        return self.inflight.dead if self.inflight else ()

    @property
    def pending(self) -> tuple[PendingRun, ...]:
        """Return the records that are not acked yet."""
        return self.inflight.pending if self.inflight else ()

    @property
    def unacked(self) -> int:
        """Return the number of records that are not acked yet."""
        return sum(run.count for run in self.pending)

    @property
    def resume(self) -> RecordPosition | None:
        """Return the first record that is not acked yet; None if there is none."""
        return min(
            (self.turns[run.txid].at(run.open[0]) for run in self.pending if run.txid in self.turns),
            default=None,
        )

    @property
    def blocked(self) -> str:
        """Return why the shard reads nothing new, or the empty string."""
        return self.inflight.blocked if self.inflight else ""


def make_starting_plan(txid: int, streams: Mapping[str, int], states: Mapping[str, ShardState]) -> Plan:
    """Return the offset before the first batch of a Spark checkpoint: positions and unfinished runs, no work."""
    plan = Plan(
        txid=txid,
        plan="",
        streams=dict(streams),
        positions={shard: str(state.position) for shard, state in sorted(states.items())},
    )
    return add_waiting(plan, states)


def make_plan(
    *,
    txid: int,
    plan: str,
    streams: Mapping[str, int],
    states: Mapping[str, ShardState],
    coming: Mapping[str, ShardState] | None = None,
    read: Collection[str],
    now: int,
    max_records: int | None,
    max_bytes: int | None = None,
    max_inflight: int | None = None,
    max_turn: int = 0,
    deaggregate: bool | None = None,
    upto: int | None = None,
    chains: Chains = _NO_ORDER,
) -> Plan | None:
    """Return the plan of the next batch, or None if there is nothing to do.

    `plan` is the random mark of this plan; `read` names the shards of which new records are read, `coming` has those
    whose failed records come again, if not all do; `now` is in epoch milliseconds; `max_records` bounds the new records
    of all shards together, `max_bytes` their payload, `max_inflight` the records of a shard that are read and not done.
    `max_turn`: the maximum of new records in any turn. `deaggregate`: whether aggregates are split.
    `upto`: as in `Plan`. `chains`: what waits for what.
    """
    ordered = sorted(states.items())
    coming = states if coming is None else coming
    due = _collect_due(coming, now, chains)
    retries, dead = _split_by_kind(clip(due, due_bytes(len(ordered)), txid))
    wanted = sorted(read)
    # Every second record can fail and be a separate run.
    room = {
        shard: fit
        for shard in wanted
        if (fit := 2 * (RUNS_A_SHARD - len(states[shard].waiting) - len(states[shard].dead))) < max_turn
    }
    if max_inflight is not None:
        room = {
            shard: min(max_inflight - states[shard].held, room.get(shard, max_inflight)) for shard in wanted
        }
    wanted = [shard for shard in wanted if room.get(shard, 1) > 0]
    limit, chosen = per_shard_limit(wanted, max_records, txid)
    limit_bytes, chosen = per_shard_limit(chosen, max_bytes, txid)
    if not (chosen or dead or any(run.due <= now for runs in due.values() for run in runs)):
        return None
    made = Plan(
        txid=txid,
        plan=plan,
        streams=dict(streams),
        positions={shard: str(state.position) for shard, state in ordered},
        read=tuple(chosen),
        retries=retries,
        dead=dead,
        limit=limit,
        limitBytes=limit_bytes,
        room={shard: room[shard] for shard in chosen if shard in room},
        deaggregate=deaggregate,
        upto=upto if chosen else None,
    )
    return add_waiting(made, states)


def add_all_due(plan: Plan, states: Mapping[str, ShardState], now: int, chains: Chains = _NO_ORDER) -> Plan:
    """Return the plan to be stored: with all runs that are due, as many as fit into a node."""
    due = _collect_due(states, now, chains)
    if sum(map(len, due.values())) == sum(map(len, (*plan.retries.values(), *plan.dead.values()))):
        return plan
    retries, dead = _split_by_kind(clip(due, STORED_BYTES, plan.txid))
    return msgspec.structs.replace(plan, retries=retries, dead=dead)


def add_waiting(plan: Plan, states: Mapping[str, ShardState]) -> Plan:
    """Return the plan with the other waiting runs: those for a later batch, and those that wait for acks.

    If they are too many to name, `resume` is the first unfinished record of the shard.
    """
    left = {}
    for shard, state in states.items():
        taken = {run.last for run in (*plan.retries.get(shard, ()), *plan.dead.get(shard, ()))}
        rest = tuple(run for run in _unfinished_runs(state) if run.last not in taken)
        if rest:
            left[shard] = rest
    named = clip_whole(left, waiting_bytes(len(states)))
    resume = {shard: At(at) for shard, state in states.items() if (at := state.resume) is not None}
    for shard in left.keys() - named.keys():
        first = min(map(begin_of, (*states[shard].waiting[:1], *states[shard].dead[:1])))
        resume[shard] = min(resume.get(shard, At(first)), At(first), key=lambda at: at.record)
    return msgspec.structs.replace(
        plan, notDone=named, resume={shard: str(at) for shard, at in sorted(resume.items())}
    )


def keep_still_due(plan: Plan, states: Mapping[str, ShardState], chains: Chains = _NO_ORDER) -> Plan:
    """Return the plan with those of its runs that still wait, or are dead, as it names them.

    A plan that Spark has logged and nobody has stored can be older than the shards' nodes: its runs may have been
    acked, or asked for again, by name since. Such a run cannot be settled; what is left of it comes with a later plan,
    and so does what waits for it.
    """
    taken_up = {*plan.retries, *plan.dead} & states.keys()
    waiting = {shard: {_key(run) for run in states[shard].waiting} for shard in taken_up}
    dead = {shard: {_key(run) for run in states[shard].dead} for shard in taken_up}
    retries = {
        shard: _keep_in_order(chains, shard, states[shard].waiting, runs)
        for shard, runs in _known(plan.retries, waiting).items()
    }
    known = {shard: runs for shard, runs in retries.items() if runs}
    return msgspec.structs.replace(plan, retries=known, dead=_known(plan.dead, dead))


def per_shard_limit(shards: list[str], most: int | None, txid: int) -> tuple[int | None, list[str]]:
    """Divide so many records, or bytes: (the share of a shard, the shards that are read).

    If there are fewer records than shards, the shards take turns by txid, so that none starves.
    """
    if most is None or not shards:
        return None, shards
    if most >= len(shards):
        return math.floor(most / len(shards)), shards
    first = (txid * most) % len(shards)
    return 1, sorted((shards[first:] + shards[:first])[:most])


_Runs = Mapping[tuple[str, bool], tuple[Run, ...]]
"""Runs by their shard, and whether they are exhausted."""


def _collect_due(states: Mapping[str, ShardState], now: int, chains: Chains) -> _Runs:
    """Return the runs that are due, and the exhausted ones."""
    ordered = sorted(states.items())
    waits = ((shard, state.waiting) for shard, state in ordered if state.waiting)
    # What bolts hold goes into each plan, to meet what it waits for.
    found = (
        (shard, chains.select(shard, runs, lambda run: run.due <= now or run.is_held))
        for shard, runs in waits
    )
    due = {(shard, False): some[:MAX_DUE_RUNS] for shard, some in found if some}
    return due | {(shard, True): state.dead[:MAX_DUE_RUNS] for shard, state in ordered if state.dead}


def _split_by_kind(runs: _Runs) -> tuple[dict[str, tuple[Run, ...]], dict[str, tuple[Run, ...]]]:
    """Return the runs that are due, and the exhausted ones, by shard."""
    taken = sorted(runs.items())
    retries, dead = (
        {shard: some for (shard, exhausted), some in taken if exhausted is kind} for kind in (False, True)
    )
    return retries, dead


def _keep_in_order(
    chains: Chains, shard: str, waiting: tuple[Run, ...], runs: tuple[Run, ...]
) -> tuple[Run, ...]:
    """Return those of some waiting runs of a shard that wait for none which is not among them."""
    named = {run.last for run in runs}
    kept = {run.last for run in chains.select(shard, waiting, lambda run: run.last in named)}
    return tuple(run for run in runs if run.last in kept)


def _unfinished_runs(state: ShardState) -> tuple[Run, ...]:
    return (*state.waiting, *state.dead)


def _key(run: Run) -> tuple[RecordPosition, int, int]:
    """Return the key by which the tracker looks up a run among those of its shard."""
    return run.last_position, run.attempt, run.count


def _known(
    named: Mapping[str, tuple[Run, ...]], known: Mapping[str, set[tuple[RecordPosition, int, int]]]
) -> dict[str, tuple[Run, ...]]:
    left = {
        shard: tuple(run for run in runs if _key(run) in known.get(shard, ()))
        for shard, runs in named.items()
    }
    return {shard: runs for shard, runs in left.items() if runs}
