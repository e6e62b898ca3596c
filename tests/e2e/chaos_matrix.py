"""`make chaos`: each cell dies at each point by the death of each victim; draws docs/exactly_once.svg.

What a job has shown stays in pytest's cache, so that one can be run again alone: `make chaos ARGS="-k worker"`.
"""

from __future__ import annotations

import msgspec
import pytest
from chaos_picture import PICTURE, draw
from crashed_topologies import CRASHES, Chaos, Outcome, Victim, deviations, refusals
from kazoo.client import KazooClient
from matrix import SPOUTS, STATES
from servers import RedisServer

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis

pytestmark = [pytest.mark.timeout(3600), pytest.mark.chaos]


OF = {victim: [crash for crash in CRASHES if crash.victim is victim] for victim in Victim}
JOBS = {
    "driver 1": OF[Victim.DRIVER][:2],
    "driver 2": OF[Victim.DRIVER][2:],
    "executor 1": OF[Victim.EXECUTOR][:4],
    "executor 2": OF[Victim.EXECUTOR][4:],
    "Python worker": OF[Victim.WORKER],
}
"""The crashes that each job goes through; none takes longer than a few minutes on a busy machine."""


@pytest.mark.parametrize("job", JOBS)
def test_deaths(
    job: str,
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
    cache: pytest.Cache,
) -> None:
    cache.set(f"chaos/{job}", [])
    folder = tmp_path_factory.mktemp("chaos")
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        chaos = Chaos(folder, kinesis, keeper, zookeeper.hosts, redis_server.url)
        outcomes = chaos.outcomes(JOBS[job])
        traces = chaos.traces(zookeeper._folder)
    cache.set(f"chaos/{job}", msgspec.to_builtins(outcomes))
    assert refusals(traces) == {}


def test_the_cells_are_what_is_documented(cache: pytest.Cache) -> None:
    kept = [cache.get(f"chaos/{job}", []) for job in JOBS]
    outcomes = msgspec.convert([one for some in kept for one in some], list[Outcome])
    assert len(outcomes) == len(CRASHES) * len(SPOUTS) * len(STATES)
    assert deviations(outcomes) == []
    PICTURE.write_text(draw(outcomes))
