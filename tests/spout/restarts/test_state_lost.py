"""ZooKeeper lost, or put back from an older copy, under a Spark checkpoint that knows more."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from by_hand import numbers
from restarting import Start, Stream, backup, restore, wipe
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.errors import CheckpointMismatchError
from kinesis_trident.spout.testing import MemoryKinesis


def test_zookeeper_wiped_between_two_batches(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stop; with `continue` the last batch is read again and what waited still waits, with its count."""
    first = stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    life = start(**given)
    assert numbers(life.batch(failing={3})) == first
    second = stream.put(10)
    last = life.batch(failing={3})
    life.end()
    third = stream.put(10)
    wipe(own_zookeeper, tmp_path)

    caplog.set_level("INFO", logger="kinesis_trident")
    refused = start(life.checkpoint, **given)
    with pytest.raises(
        CheckpointMismatchError, match=r"txid 2.*knows nothing after txid 0.*onCheckpointMismatch=continue"
    ):
        refused.plan()
    # The log has the number that `status` has.
    newest = refused.store.epochs.newest_run()
    assert newest is not None
    assert re.findall(r"settled up to txid 0, epoch (\d+) of", caplog.text)[-1] == str(newest[0])
    refused.end()
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    rows = going_on.drain()
    assert "READ AGAIN under txid 3" in caplog.text
    assert min(txid for *_, txid in rows) == 3
    assert numbers(rows) == sorted({*numbers(last), *second, 3, *third})
    assert [attempt for number, _, attempt, _ in rows if number == 3] == [2]


@pytest.mark.parametrize("in_hand", cases(True, long=(False,)))
def test_zookeeper_wiped_with_more_waiting_than_the_offset_holds(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    in_hand: bool,
) -> None:
    """With `continue` the shard is read again from the first record that was not done, and says so."""
    monkeypatch.setattr("kinesis_trident.spout.planner.plan.waiting_bytes", lambda _: 0)
    first = stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts, "retryBackoff": "1h..1h x1"}
    life = start(**given)
    assert numbers(life.batch(failing={3, 7})) == first
    second = stream.put(10)
    if in_hand:
        life.planned()
        life.rows()
    else:
        life.batch()
    assert (life.in_hand or life.committed).notDone == {}
    life.end()
    third = stream.put(10)
    wipe(own_zookeeper, tmp_path)
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    if in_hand:
        # Its rows come once more, with what is read again.
        assert going_on.rows() == []
        going_on.commit()
    rows = going_on.drain()
    assert "everything from AT_SEQUENCE_NUMBER" in caplog.text
    assert "READ AGAIN (at least once)" in caplog.text
    # Nothing is lost; what was done before the first that was not stays done.
    again = set(numbers(rows))
    assert {3, 7, *second, *third} <= again <= {*first[3:], *second, *third}


def test_zookeeper_wiped_under_a_batch_at_hand(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stop; with `continue` the plan in Spark's offset is used, under its own txid."""
    stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    life = start(**given)
    life.batch(failing={3})
    second = stream.put(10)
    plan = life.planned()
    rows = life.rows()
    life.end()
    wipe(own_zookeeper, tmp_path)
    with pytest.raises(
        CheckpointMismatchError, match=r"Spark starts txid 2 over.*knows nothing after txid 0"
    ):
        start(life.checkpoint, **given).rows()
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    assert going_on.rows() == rows
    assert going_on.in_hand == plan
    assert "txid 2 comes AGAIN" in caplog.text
    going_on.publish()
    going_on.commit()
    left = {3, *second} - set(numbers(rows))
    assert set(numbers(going_on.drain())) == left


@pytest.mark.long
def test_zookeeper_wiped_and_no_spark_checkpoint_is_a_new_start(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Nothing that could differ from a new application is left."""
    wanted = stream.put(10)
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    life = start(**given)
    life.batch()
    life.end()
    wipe(own_zookeeper, tmp_path)
    rows = start(**given).drain()
    assert numbers(rows) == wanted
    assert {txid for *_, txid in rows} == {1}


@pytest.mark.parametrize("in_hand", cases(True, long=(False,)))
def test_zookeeper_restored_from_an_older_copy(
    start: Start,
    stream: Stream,
    own_zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    in_hand: bool,
) -> None:
    # However many batches the failing records come in, they are not given up.
    given = {"zookeeper_hosts": own_zookeeper.hosts, "retryLimit": "9"}
    stream.put(10)
    life = start(**given)
    life.batch()
    stream.put(10)
    life.batch(failing={12})
    life.end()
    backup(own_zookeeper, tmp_path)
    life = start(life.checkpoint, **given)
    for _ in range(2):
        stream.put(10)
        life.batch(failing={12, 23})
    if in_hand:
        stream.put(10)
        life.planned()
        life.rows()
    before = life.in_hand or life.committed
    life.end()
    restore(own_zookeeper, tmp_path)

    refused = start(life.checkpoint, **given)
    with pytest.raises(
        CheckpointMismatchError, match=f"txid {before.txid}.*knows nothing after txid 1.*older copy"
    ):
        (refused.rows if in_hand else refused.plan)()
    refused.end()
    going_on = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    since = stream.put(10)
    rows = going_on.drain()
    assert "older copy" in caplog.text
    # At least once from the last batch that Spark knows; nothing that was done before it comes again.
    assert set(since) <= set(numbers(rows))
    undone = {run.last for runs in (*before.retries.values(), *before.notDone.values()) for run in runs}
    ids = {id_.rpartition(":")[2]: number for number, id_, *_ in rows}
    assert undone <= ids.keys()
    assert max(Counter(numbers(rows)).values()) == 1
    assert all(number >= 20 or number == 12 for number in numbers(rows))
    attempts = {number: attempt for number, _, attempt, _ in rows}
    assert attempts[12] >= 2


@pytest.mark.parametrize("is_older_copy", cases(True, long=(False,)))
def test_shards_that_an_offset_leaves_out_are_not_read_again(
    start: Start, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path, is_older_copy: bool
) -> None:
    """Drained shards leave the offset once all their records are done; ZooKeeper, lost or older, knows less."""
    memory = MemoryKinesis(shards=1)
    [parent] = memory.open_shards
    given = {"zookeeper_hosts": own_zookeeper.hosts, "streamName": "orders"}
    memory.put(parent, b"0")
    memory.put(parent, b"1")
    life = start(kinesis=memory, **given)
    assert numbers(life.batch(failing={1})) == [0, 1]
    life.plan()
    life.end()
    backup(own_zookeeper, tmp_path)
    memory.put(parent, b"2")
    children = memory.split(parent)
    for number, child in enumerate(children, start=3):
        memory.put(child, str(number).encode())
    life = start(life.checkpoint, kinesis=memory, **given)
    rows = []
    while len(rows) < 4:
        rows += life.batch()
        assert life.committed.positions
    assert numbers(rows) == [1, 2, 3, 4]
    # Its children read on alone.
    memory.put(children[0], b"5")
    assert numbers(life.batch()) == [5]
    assert sorted(life.committed.positions) == sorted(children)
    life.end()
    (restore if is_older_copy else wipe)(own_zookeeper, tmp_path)

    going_on = start(life.checkpoint, kinesis=memory, onCheckpointMismatch="continue", **given)
    memory.put(children[1], b"6")
    assert numbers(going_on.drain()) == [5, 6]
    lineage, inflight = going_on.store.shards.lineage(), going_on.store.shards.inflight()
    assert lineage is not None
    assert {shard: node.state for shard, node in lineage.shards.items()} == {
        parent: "drained",
        **dict.fromkeys(children, "open"),
    }
    assert not any(node.waiting for node in inflight.values())


@pytest.mark.long
def test_zookeeper_older_by_one_settling_does_it_again(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Everything that it takes is in the copy: pins, outcome and plan; so nothing is lost, and nothing comes twice.

    tests/model restores such copies at any moment.
    """
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    everything = stream.put(10)
    life = start(**given)
    done = life.batch(failing={3})
    life.end()
    backup(own_zookeeper, tmp_path)
    life = start(life.checkpoint, **given)
    everything += stream.put(10)
    life.planned()
    rows = life.rows()
    life.end()
    restore(own_zookeeper, tmp_path)
    # The run that planned it is not known any more: what it did is.
    with pytest.raises(CheckpointMismatchError, match=r"knows nothing after.*continue: txid 2 comes AGAIN"):
        start(life.checkpoint, **given).rows()
    again = start(life.checkpoint, onCheckpointMismatch="continue", **given)
    # It was read after the copy was made: a batch that nobody has seen the end of may be cut anew.
    assert {row[0] for row in again.rows()} >= {row[0] for row in rows}
    assert again.run.settled == 1
    done += again.batch()
    everything += stream.put(10)
    done += again.drain()
    assert numbers(done) == sorted([*everything, 3])
    assert sorted(attempt for number, _, attempt, _ in done if number == 3) == [1, 2]
