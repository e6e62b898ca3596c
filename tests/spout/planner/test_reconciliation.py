"""Every way in which Spark's checkpoint and ZooKeeper can stand to each other, and its one outcome."""

from __future__ import annotations

import pytest

from kinesis_trident.checkpoint.model.nodes import Plan
from kinesis_trident.spout.planner.reconciliation import Standing, stands


def plan(txid: int, mark: str) -> Plan:
    return Plan(txid=txid, plan=mark, streams={"s": 1}, positions={})


CASES = [
    ("the very first start", plan(0, ""), (0, "", None), Standing.AGREES),
    ("a new Spark checkpoint goes on from ZooKeeper", plan(5, ""), (5, "E", None), Standing.AGREES),
    (
        "a new Spark checkpoint while a plan is unsettled",
        plan(5, ""),
        (5, "E", plan(6, "F")),
        Standing.AGREES,
    ),
    ("settled already, as after a crash just after settling", plan(5, "E"), (5, "E", None), Standing.AGREES),
    ("adopted from Spark's offset before, mark not known", plan(5, "E"), (5, "", None), Standing.AGREES),
    ("committed and not settled", plan(6, "F"), (5, "E", plan(6, "F")), Standing.SETTLE),
    ("the first batch, committed and not settled", plan(1, "A"), (0, "", plan(1, "A")), Standing.SETTLE),
    (
        "another checkpoint settled another batch as this txid",
        plan(5, "X"),
        (5, "E", None),
        Standing.SPARK_BEHIND,
    ),
    ("another checkpoint has gone on", plan(4, "D"), (5, "E", None), Standing.SPARK_BEHIND),
    (
        "a Spark checkpoint that never had a row, and another one has gone on",
        plan(4, ""),
        (5, "E", None),
        Standing.AGREES,
    ),
    (
        "behind by far, even if a plan is unsettled",
        plan(1, "A"),
        (5, "E", plan(6, "F")),
        Standing.SPARK_BEHIND,
    ),
    ("ZooKeeper's data is lost", plan(6, "F"), (0, "", None), Standing.ZOOKEEPER_BEHIND),
    ("a start offset, and ZooKeeper's data is lost", plan(6, ""), (0, "", None), Standing.ZOOKEEPER_BEHIND),
    ("ZooKeeper lost just the plan", plan(6, "F"), (5, "E", None), Standing.ZOOKEEPER_BEHIND),
    (
        "ZooKeeper was restored, and holds another plan",
        plan(6, "F"),
        (5, "E", plan(6, "Y")),
        Standing.ZOOKEEPER_BEHIND,
    ),
    (
        "ZooKeeper was restored to long before",
        plan(9, "I"),
        (5, "E", plan(6, "F")),
        Standing.ZOOKEEPER_BEHIND,
    ),
    ("a start offset is never a stored plan", plan(6, ""), (5, "E", plan(6, "F")), Standing.ZOOKEEPER_BEHIND),
]


@pytest.mark.parametrize(
    ("offset", "zookeeper", "standing"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_each_case_has_one_outcome(
    offset: Plan, zookeeper: tuple[int, str, Plan | None], standing: Standing
) -> None:
    assert stands(offset, *zookeeper) is standing
