"""Converts plans to the offsets that Spark logs, parses them strictly, and recovers the state from one alone."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.codec import NewerVersionError, encode, read
from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode, Plan
from kinesis_trident.common.visible_text import shorten
from kinesis_trident.spout.errors import OffsetError
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import After, At, Position, ShardEnd, parse_position
from kinesis_trident.tracker.records import RecordPosition, Run

log = logging.getLogger(__name__)


def offset_from_plan(plan: Plan) -> dict[str, Any]:
    """Return the plan as the JSON object that Spark logs; very many runs are packed."""
    offset: dict[str, Any] = msgspec.json.decode(encode(plan))
    return offset


class Offsets:
    """Makes the offsets of a query's batches and reads those of others, each once: one may name thousands of records.

    Spark passes the offset of a batch as its end, and twice as a start.
    """

    def __init__(self) -> None:
        self._read: deque[tuple[object, Plan]] = deque(maxlen=2)

    def offset(self, plan: Plan) -> dict[str, Any]:
        """Return the offset of a plan, which comes back when Spark has logged it."""
        offset = offset_from_plan(plan)
        self._read.append((offset, plan))
        return offset

    def plan(self, offset: object) -> Plan:
        """Return the plan of an offset.

        Raises:
            OffsetError: as `plan_from_offset`.
        """
        known = next((pair for pair in self._read if pair[0] == offset), None)
        if known is None:
            known = offset, plan_from_offset(offset)
        else:
            # What was used last stays longest: else a start that was not known once would be read in each batch.
            self._read.remove(known)
        self._read.append(known)
        return known[1]


def plan_from_offset(offset: object) -> Plan:
    """Read an offset from Spark's log.

    Raises:
        OffsetError: another release has written it, or it is not an offset of this source.
    """
    if not isinstance(offset, dict):
        # Spark parses the JSON of its log, and passes on whatever that is.
        msg = f"it is no object, but {offset!r}"
        raise _foreign_offset_error(msg)
    try:
        return read(msgspec.json.encode(offset), Plan)
    except NewerVersionError as error:
        msg = (
            f"Spark's checkpoint has an offset that {error}. Use that release again, or start with a new "
            "checkpointLocation"
        )
        raise OffsetError(msg) from None
    except (ValueError, OverflowError, RecursionError) as error:
        # Half of a surrogate pair, or a number of a hundred digits: no JSON of ours has them.
        raise _foreign_offset_error(error) from error


def _foreign_offset_error(why: object) -> OffsetError:
    return OffsetError(
        f"Spark's checkpoint has an offset that is not ours ({shorten(str(why))}). Start with a new checkpointLocation"
    )


def name_shards_in_home(plan: Plan, layout: Layout) -> Plan:
    """Return the plan with shard names of the home: a plan of a stream that was read alone has ids only."""
    if not layout.several or len(plan.streams) != 1:
        return plan
    ((stream, created),) = plan.streams.items()

    def name(shard: str) -> str:
        return shard if "/" in shard else layout.name_of(ShardKey(stream, created, shard))

    return msgspec.structs.replace(
        plan,
        positions={name(shard): position for shard, position in plan.positions.items()},
        read=tuple(map(name, plan.read)),
        retries={name(shard): runs for shard, runs in plan.retries.items()},
        dead={name(shard): runs for shard, runs in plan.dead.items()},
        notDone={name(shard): runs for shard, runs in plan.notDone.items()},
        room={name(shard): room for shard, room in plan.room.items()},
        resume={name(shard): position for shard, position in plan.resume.items()},
    )


def adopt_nodes(
    plan: Plan, states: Mapping[str, ShardState], settled: int
) -> dict[str, tuple[CheckpointNode, InflightNode | None]]:
    """Return the nodes of each shard of an offset, stamped with `settled`; delivery is at least once from here.

    Positions are those that the offset's batch started from; the runs that it would have retried and those that waited
    are not done. If records waited for their acks, reading starts again at the first of them.
    """
    updates: dict[str, tuple[CheckpointNode, InflightNode | None]] = {}
    for shard, text in plan.positions.items():
        position, known = parse_position(text), states.get(shard)
        if known is not None and known.checkpoint is not None and _is_beyond(known, position):
            # Done records stay done: reading would deliver records that are counted already.
            log.error(
                "shard %s: ZooKeeper is at %s, Spark's offset at %s: no record in between is read again",
                shard,
                known.position,
                position,
            )
            kept = msgspec.structs.replace(known.checkpoint, txid=settled)
            updates[shard] = (kept, known.inflight)
            continue
        if shard in plan.resume and known is not None and known.checkpoint is not None:
            # An older copy of ZooKeeper's data: it has the records in flight at its position; reading continues there.
            updates[shard] = (msgspec.structs.replace(known.checkpoint, txid=settled), known.inflight)
            continue
        if shard in plan.resume:
            log.error(
                "shard %s: Spark's offset does not name all unfinished records: everything from %s on is READ AGAIN "
                "(at least once), not from %s on",
                shard,
                plan.resume[shard],
                position,
            )
            position = parse_position(plan.resume[shard])
        waiting = sorted(
            (*plan.retries.get(shard, ()), *(plan.notDone.get(shard, ()))),
            key=lambda run: run.last_position,
        )
        dead = plan.dead.get(shard, ())
        if shard in plan.resume and isinstance(position, At):
            # From here on everything is read again.
            waiting = [run for run in waiting if run.last_position < position.record]
            dead = tuple(run for run in dead if run.last_position < position.record)
        safe = _find_safe_below(position, [*waiting, *dead], known)
        inflight = InflightNode(txid=settled, waiting=tuple(waiting), dead=dead, counted=True)
        updates[shard] = (
            CheckpointNode(
                checkpoint=safe.sequence if safe else None,
                sub=safe.sub if safe else -1,
                txid=settled,
                position=str(position),
                held=inflight.size,
            ),
            inflight,
        )
    return updates


def start_where_shards_stand(plan: Plan, states: Mapping[str, ShardState]) -> Plan:
    """Return a plan that nobody has stored so that it leaves out no record: a shard starts where it stands, if earlier.

    A plan that Spark has logged starts where the batch before ended. If that batch is to be read again, because its
    outcome is missing, its records come with this one.
    """
    earlier = {
        shard: str(states[shard].position)
        for shard, text in plan.positions.items()
        if shard in states
        and str(states[shard].position) != text
        and not _is_beyond(states[shard], parse_position(text))
    }
    return msgspec.structs.replace(plan, positions={**plan.positions, **earlier}) if earlier else plan


def _find_safe_below(
    position: Position, runs: Sequence[Run], known: ShardState | None
) -> RecordPosition | None:
    """Return the safe checkpoint of a shard at `position` with these unfinished runs; never below a known one."""
    safe = position.record if isinstance(position, After | ShardEnd) else None
    if runs:
        first = min(runs, key=lambda run: run.last_position)
        safe = RecordPosition.parse(first.prev) if first.prev else None
    before = known.safe if known else None
    return max(safe, before) if safe and before else safe or before


def is_any_beyond(plan: Plan, states: Mapping[str, ShardState]) -> bool:
    """Return whether ZooKeeper has a shard beyond the start of a plan, whose batch can then not be settled."""
    return any(
        shard in states and _is_beyond(states[shard], parse_position(text))
        for shard, text in plan.positions.items()
    )


def _is_beyond(known: ShardState, position: Position) -> bool:
    """Return whether a shard has been read, or done, beyond a position."""
    here = position.record if isinstance(position, After | ShardEnd) else None
    there = known.position.record if isinstance(known.position, After | ShardEnd) else None
    read = max((at for at in (there, known.safe) if at is not None), default=None)
    return read is not None and (here is None or read > here) and not isinstance(position, ShardEnd)
