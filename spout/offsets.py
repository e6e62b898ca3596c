"""The offset that Spark logs is a plan; here it is read back strictly."""

from __future__ import annotations

from typing import Any

import msgspec

from checkpoint.nodes import VERSION, Plan
from spout.errors import OffsetError

__all__ = ["offset_from_plan", "plan_from_offset"]


def offset_from_plan(plan: Plan) -> dict[str, Any]:
    """The plan as the JSON object that Spark logs."""
    offset: dict[str, Any] = msgspec.to_builtins(plan)
    return offset


def plan_from_offset(offset: dict[str, Any]) -> Plan:
    """Read an offset from Spark's log.

    Raises:
        OffsetError: another version, or not an offset of this source.
    """
    version = offset.get("v")
    if version != VERSION:
        msg = (
            f"Spark's checkpoint holds an offset of version {version!r}, this release reads version {VERSION}: "
            "use the release that wrote it, or start with a new checkpointLocation"
        )
        raise OffsetError(msg)
    try:
        return msgspec.convert(offset, Plan)
    except msgspec.ValidationError as error:
        msg = f"Spark's checkpoint holds an offset that is not ours ({error}): start with a new checkpointLocation"
        raise OffsetError(msg) from error
