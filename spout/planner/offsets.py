"""Converts plans to the offsets that Spark logs, and parses them strictly."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.codec import NewerVersionError, encode, read
from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.errors import OffsetError
from kinesis_trident.tracker.reasons import shorten


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
        OffsetError: a newer release has written it, or it is not an offset of this source.
    """
    if not isinstance(offset, dict):
        # Spark parses the JSON of its log, and passes on whatever that is.
        msg = f"it is no object, but {offset!r}"
        raise _foreign_offset_error(msg)
    try:
        return read(msgspec.json.encode(offset), Plan)
    except NewerVersionError as error:
        msg = (
            f"Spark's checkpoint has an offset that {error}. Use the newer release again, or start with a new "
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
