"""Test what a shard's nodes become when somebody sets its position by hand."""

from __future__ import annotations

import pytest

from kinesis_trident.checkpoint.model.change_nodes import BackupNode
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode, InflightNode
from kinesis_trident.console.changes import restore, set_position
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position
from kinesis_trident.tracker.records import PendingRun, RecordPosition, Run

S = "shardId-000000000000"
COPY = BackupNode(
    application="a",
    home="/r/a/orders@1",
    time=1,
    settled=7,
    checkpoints={
        S: CheckpointNode(checkpoint="9", txid=7, position="AFTER_SEQUENCE_NUMBER 50", arrival=1_000, read=50)
    },
    inflight={
        S: InflightNode(
            txid=7,
            waiting=(Run("10", "10"), Run("", "22", 3, prev="19")),
            dead=(Run("40", "40"),),
            blocked="full",
        )
    },
)


def at(number: int) -> RecordPosition:
    return RecordPosition(number)


@pytest.mark.parametrize(
    ("position", "checkpoint", "kept"),
    [
        (TRIM_HORIZON, None, []),
        (After(at(60)), "60", ["10", "22", "40"]),
        (After(at(22)), "22", ["10", "22"]),
        (After(at(10)), "10", ["10"]),
        (After(at(5)), "5", []),
        (At(at(40)), "9", ["10", "22"]),
        (At(at(9)), None, []),
        # After all that was read, or among it.
        (AtTimestamp(1_001), "9", ["10", "22", "40"]),
        (AtTimestamp(1_000), None, []),
    ],
)
def test_what_failed_before_the_position_waits_on(
    position: Position, checkpoint: str | None, kept: list[str]
) -> None:
    change = set_position(COPY, S, position, what="set it")
    node, held = change.checkpoints[S], change.inflight[S]
    assert (node.checkpoint, node.position, node.txid, node.read) == (checkpoint, str(position), 7, 50)
    assert [run.last for run in (*held.waiting, *held.dead)] == kept
    assert held.blocked == ""


def test_a_position_inside_a_run_of_failed_records_is_refused() -> None:
    with pytest.raises(ConsoleError, match=r"19\.\.22 of shard shardId-000000000000 lie on both sides of 21"):
        set_position(COPY, S, After(at(21)), what="set it")


def test_records_that_are_not_acked_are_refused() -> None:
    held = InflightNode(txid=7, waiting=(), pending=(PendingRun(6, (0, 3)),), turns=(6,))
    copy = BackupNode(application="a", home="h", time=1, inflight={S: held}, checkpoints=COPY.checkpoints)
    with pytest.raises(ConsoleError, match=r"shard .* has 3 records not acked yet"):
        set_position(copy, S, TRIM_HORIZON, what="set it")
    with pytest.raises(ConsoleError, match="not acked"):
        restore(COPY, copy, [S], what="restore")


def test_a_copy_comes_back_as_it_was_with_the_stamp_of_now() -> None:
    saved = decode("file", encode(COPY), BackupNode)
    assert saved == COPY
    now = BackupNode(application="a", home="h", time=2, settled=9)
    change = restore(now, saved, [S], what="restore")
    assert change.checkpoints[S].txid == change.inflight[S].txid == 9
    assert change.inflight[S].waiting == COPY.inflight[S].waiting
