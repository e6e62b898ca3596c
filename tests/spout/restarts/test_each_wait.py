"""ZooKeeper goes away before each request of a start, a batch and an end, for good: nothing waits without a limit."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

import pytest
from by_hand import Lives
from lossy_proxy import LossyProxy
from thorough import CHAOS, cases

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"


def live(lives: Lives, hosts: str, app: str, started: Callable[[], object] = lambda: None) -> None:
    """Start, read two batches of which a record fails, settle them, and end."""
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    kinesis.put(A, b"1")
    query = lives.begin(kinesis, applicationName=app, zookeeper_hosts=hosts, zookeeper_sessionTimeout="1s")
    started()
    try:
        query.batch(failing={1})
        kinesis.put(A, b"2")
        query.batch()
        query.plan()
    finally:
        query.run.end()


def ended(call: Callable[[], object]) -> tuple[BaseException | None, str]:
    """Return the error of a call; or where it is after a minute, if it has not ended."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    if thread.is_alive():
        frames = traceback.format_stack(sys._current_frames()[thread.ident or 0])
        return None, "".join(frames[-4:])
    return (errors or [None])[0], ""


@pytest.mark.parametrize("silent", cases(False, long=(True,)))
def test_the_server_goes_away_before_each_request(
    make_lives: Callable[..., Lives], proxy: LossyProxy, app: str, silent: bool
) -> None:
    counts: list[int] = []
    live(make_lives(), proxy.hosts, app, lambda: counts.append(proxy.asked))
    requests = proxy.asked
    assert requests > 30
    # The last requests of a start are those of its watches, which kazoo's own make without a limit.
    some = {*range(2, requests, 12), *range(counts[0] - 4, counts[0])}
    stuck: list[str] = []
    for number in range(requests) if CHAOS else sorted(some):
        gone = LossyProxy(proxy.server)
        gone.go_away(number, silent=silent)
        error, stack = ended(lambda hosts=gone.hosts, n=number: live(make_lives(), hosts, f"{app}-{n}"))  # type: ignore[misc]
        if stack:
            stuck.append(f"before request {number}: {stack}")
        assert error is None or isinstance(error, CheckpointError), (number, error)
        gone.close()
    assert not stuck
