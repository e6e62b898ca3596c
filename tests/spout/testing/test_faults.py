from __future__ import annotations

from kinesis_trident.spout.testing.faults import Cut, FaultScript, Refuse, Slow


def test_faults_come_in_order_and_once() -> None:
    script = FaultScript()
    script.add("GetRecords", Refuse.expired())
    script.add("GetRecords", Cut())
    assert script.left == 2
    assert script.next("ListShards", "orders", None) is None
    assert script.next("GetRecords", "orders", "a") == Refuse.expired()
    assert script.next("GetRecords", "orders", "a") == Cut()
    assert script.next("GetRecords", "orders", "a") is None
    assert script.left == 0


def test_a_fault_is_for_what_it_names() -> None:
    script = FaultScript()
    script.add("GetRecords", Slow(1), stream="orders", shard="b")
    assert script.next("GetRecords", "orders", "a") is None
    assert script.next("GetRecords", "others", "b") is None
    assert script.next("GetRecords", "orders", None) is None
    assert script.next("GetRecords", "orders", "b") == Slow(1)


def test_skipping_and_times() -> None:
    script = FaultScript()
    script.add("PutRecord", Refuse.throttled(), skip=2, times=2)
    found = [script.next("PutRecord", "orders", None) is not None for _ in range(6)]
    assert found == [False, False, True, True, False, False]


def test_one_that_waits_for_its_call_lets_the_next_one_act() -> None:
    script = FaultScript()
    script.add("PutRecord", Refuse.throttled(), skip=1)
    script.add("PutRecord", Refuse.failed())
    assert script.next("PutRecord", "orders", None) == Refuse.failed()
    assert script.next("PutRecord", "orders", None) == Refuse.throttled()


def test_for_ever_is_until_it_is_cleared() -> None:
    script = FaultScript()
    script.add("PutRecord", Refuse.failed(), times=None)
    assert all(script.next("PutRecord", None, None) for _ in range(100))
    script.clear()
    assert script.next("PutRecord", None, None) is None
