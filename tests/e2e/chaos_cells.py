"""Cells of spout and state, crashed: what promises it counts every record once, and the others do not.

All nine go through a death of the driver, and one of an executor while a batch is read. `make test` leaves them out:
without a death of processes, tests/test_sinks.py and tests/trident/test_late_tasks.py have a state that is left in the
middle of its commit, test_replays.py a store that goes away there, and the demo kills a whole job. `make chaos` kills
every victim at every point, and draws the picture that is compared with this run.
"""

from __future__ import annotations

import pytest
from chaos.trace import Traced
from chaos_picture import PICTURE, draw, verdicts
from crashed_topologies import CRASHES, Cell, Chaos, Crash, Outcome, Point, Victim, deviations, refusals
from kazoo.client import KazooClient
from matrix import SPOUTS
from servers import RedisServer

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis
from kinesis_trident.trident.build.checks import EXACTLY_ONCE

pytestmark = [
    pytest.mark.long,
    # The first test waits for the whole chain of deaths.
    pytest.mark.timeout(2400),
    # The module's job is begun anew; the Makefile says what these two are.
    pytest.mark.flaky(reruns=2, only_rerun=["connect back", "Illegal size"]),
]

DEATHS = [Crash(Victim.DRIVER, Point.DURING), Crash(Victim.EXECUTOR, Point.PINNING)]


@pytest.fixture(scope="module")
def job(
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[Outcome], dict[str, Traced]]:
    """Return what every crash has done to every cell, and what is left of the steps."""
    assert set(DEATHS) <= set(CRASHES)
    folder = tmp_path_factory.mktemp("chaos")
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        chaos = Chaos(folder, kinesis, keeper, zookeeper.hosts, redis_server.url)
        return chaos.outcomes(DEATHS), chaos.traces(zookeeper._folder)


@pytest.fixture
def outcomes(job: tuple[list[Outcome], dict[str, Traced]]) -> list[Outcome]:
    return job[0]


def test_a_cell_that_promises_it_is_exact(outcomes: list[Outcome]) -> None:
    promised = [Cell(spout, state) for spout, state in sorted(EXACTLY_ONCE)]
    assert promised
    for cell in promised:
        of_cell = [outcome for outcome in outcomes if outcome.cell == cell]
        assert len(of_cell) == len(DEATHS)
        assert deviations(of_cell) == []


def test_the_picture_in_the_docs_says_what_was_seen(outcomes: list[Outcome]) -> None:
    seen = {(outcome.cell, outcome.crash): outcome.exact for outcome in outcomes}
    drawn = verdicts(PICTURE.read_text())
    assert {key: drawn[key] for key in seen} == seen
    assert verdicts(draw(outcomes)) == seen


def test_the_topologies_take_the_steps_of_the_specification(
    job: tuple[list[Outcome], dict[str, Traced]],
) -> None:
    _, traces = job
    assert len(traces) == len(SPOUTS)
    assert refusals(traces) == {}
