"""A ZooKeeper that does not answer: waited for, or the query stops and goes on at its next start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from by_hand import Query, Row, numbers
from restarting import Start, Stream, wipe
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import StateMissingError, ZooKeeperUnavailableError
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect


def test_no_zookeeper_at_the_start(start: Start, own_zookeeper: EmbeddedZooKeeper) -> None:
    own_zookeeper.stop()
    with pytest.raises(
        ZooKeeperUnavailableError, match=rf"{own_zookeeper.hosts} within 1 s.*zookeeper\.hosts"
    ):
        start(zookeeper_hosts=own_zookeeper.hosts, zookeeper_sessionTimeout="1s")


def impatient(life: Query) -> None:
    """From here on a life waits no longer for ZooKeeper than with a session timeout of a second."""
    for store in (life.store, life.run._store):
        store._session.timeout = 1.0


def test_zookeeper_away_for_less_than_the_session_timeout_is_waited_for(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper
) -> None:
    wanted = stream.put(10)
    life = start(zookeeper_hosts=own_zookeeper.hosts, zookeeper_sessionTimeout="60s")
    life.planned()
    own_zookeeper.stop()
    with ThreadPoolExecutor(1) as pool:
        begun = threading.Event()

        def rows() -> list[Row]:
            begun.set()
            return life.rows()

        later = pool.submit(rows)
        assert begun.wait(120)
        own_zookeeper.start()
        assert numbers(later.result(120)) == wanted


@pytest.mark.parametrize("in_hand", cases(True, long=(False,)))
def test_zookeeper_away_for_longer_stops_the_query_and_a_restart_goes_on(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, in_hand: bool
) -> None:
    given = {"zookeeper_hosts": own_zookeeper.hosts}
    stream.put(10)
    life = start(**given)
    first = life.batch(failing={4})
    second = []
    if in_hand:
        stream.put(10)
        life.planned()
        second = life.rows()
    impatient(life)
    own_zookeeper.stop()
    with pytest.raises(
        ZooKeeperUnavailableError, match=r"did not answer within 1 s.*zookeeper\.sessionTimeout"
    ):
        (life.rows if in_hand else life.plan)()
    life.end()
    own_zookeeper.start()
    again = start(life.checkpoint, **given)
    since = stream.put(10)
    if in_hand:
        assert again.rows() == second
        again.publish()
        again.commit()
    rows = [*second, *again.drain()]
    done = [number for number in numbers([*first, *rows]) if number != 4]
    assert len(done) == len(set(done)) == (29 if in_hand else 19)
    assert set(since) <= set(done)
    assert [attempt for number, _, attempt, _ in rows if number == 4] == [2]


def test_zookeeper_wiped_while_the_query_runs(
    start: Start, stream: Stream, own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """A server that knows less than its client refuses it: nothing is written into what is not the query's own."""
    stream.put(10)
    life = start(zookeeper_hosts=own_zookeeper.hosts)
    life.batch()
    impatient(life)
    wipe(own_zookeeper, tmp_path)
    with pytest.raises((StateMissingError, ZooKeeperUnavailableError)):
        life.plan()
    other = connect(ZooKeeperConfig(own_zookeeper.hosts))
    try:
        assert other.exists("/kinesis-trident") is None
    finally:
        other.stop()
        other.close()
