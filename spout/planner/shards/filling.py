"""Fills stored sequence numbers up with the zeros of the service, which an older release has left out. Pure."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from kinesis_trident.checkpoint.model.nodes import InflightNode
from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.planner.plan import ShardState
from kinesis_trident.spout.positions import After, At, ShardEnd, parse_position
from kinesis_trident.tracker.records import RecordPosition, Run


def find_digits(listed: Shard) -> int:
    """Return how many digits the service fills its sequence numbers up to; 0 if it does not, or that is not known."""
    first = listed.sequences[0].sequence if listed.sequences else ""
    return len(first) if first.startswith("0") and len(first) > 1 else 0


def fill_state(state: ShardState, digits: int) -> ShardState:
    """Return the state of a shard with all its sequence numbers in the form of the service."""
    checkpoint, inflight = state.checkpoint, state.inflight
    if checkpoint is not None:
        checkpoint = msgspec.structs.replace(
            checkpoint,
            checkpoint=None if checkpoint.checkpoint is None else checkpoint.checkpoint.zfill(digits),
            position=fill_position(checkpoint.position, digits),
        )
    turns = {txid: replace(keys, digits=max(digits, keys.digits)) for txid, keys in state.turns.items()}
    filled = ShardState(state.start, checkpoint, inflight and _fill_inflight(inflight, digits), turns)
    # The pins of its turns stay as they are.
    is_filled = filled == state and all(keys.digits >= digits for keys in state.turns.values())
    return state if is_filled else filled


def fill_position(text: str, digits: int) -> str:
    """Return the text of a position in the form of the service."""
    match parse_position(text):
        case After(record) | At(record) | ShardEnd(RecordPosition() as record):
            kind = text.partition(" ")[0]
            return f"{kind} {_fill(str(record), digits)}"
    return text


def _fill_inflight(node: InflightNode, digits: int) -> InflightNode:
    return msgspec.structs.replace(
        node,
        waiting=tuple(_fill_run(run, digits) for run in node.waiting),
        dead=tuple(_fill_run(run, digits) for run in node.dead),
        pending=tuple(
            msgspec.structs.replace(run, prev=run.prev and _fill(run.prev, digits)) for run in node.pending
        ),
    )


def _fill_run(run: Run, digits: int) -> Run:
    first, last, prev = (text and _fill(text, digits) for text in (run.first, run.last, run.prev))
    return msgspec.structs.replace(run, first=first, last=last, prev=prev)


def _fill(text: str, digits: int) -> str:
    sequence, colon, sub = text.partition(":")
    return f"{sequence.zfill(digits)}{colon}{sub}"
