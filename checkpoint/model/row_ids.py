"""The ids of a turn's rows, which follow from its plan and its pin. Pure."""

from __future__ import annotations

import numpy as np

from kinesis_trident.checkpoint.model.nodes import Pin, Plan
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.ids import number_segments, to_signed, tuple_ids, xor_of
from kinesis_trident.tracker.position_keys import Keys, counts, keys_of_texts, unpack


def positions_of(plan: Plan, shard: str, source: str, pin: Pin) -> Keys:
    """Return the positions of all records of a turn; `source` is `stream/shardId`, as message ids begin.

    Its rows are those of the runs that came again, then the new ones, without the records that cannot be decoded. The
    XOR of the ids that they have by that is the pin's: but for records that a replay has lost, nobody knows where.

    Raises:
        OrderError: it is another one.
    """
    keys = unpack(*pin.positions)
    if pin.lost:
        return keys
    served = zip(plan.due(shard), pin.served, strict=False)
    again = [count for (_, is_dead), count in served if count > 0 and not is_dead]
    fresh = len(keys) - sum(again)
    are_rows = np.ones(len(keys), np.bool_)
    starts = counts(keys, keys_of_texts([piece.first for piece in pin.unreadable]), through=False)
    ends = counts(keys, keys_of_texts([piece.last for piece in pin.unreadable]), through=True)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        are_rows[start:end] = False
    stream, _, name = source.partition("/")
    ordinals = number_segments([*again, fresh])[are_rows] if fresh >= 0 else None
    if ordinals is None or xor_of(tuple_ids(stream, pin.txid, name, ordinals)) != to_signed(pin.xor):
        msg = f"its {len(keys)} positions have other ids than its rows: pin and positions do not belong together"
        raise OrderError(msg)
    return keys
