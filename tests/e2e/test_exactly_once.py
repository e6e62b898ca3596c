"""Cells of spout and state, crashed: what promises it counts every record once, and the others do not.

Here the opaque spout goes with each state through a death of its driver. `make long` plays all nine cells, and a death
of an executor besides (`chaos_cells.py`); `make chaos` kills every victim at every point, and draws the picture that
is compared with this run.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chaos_picture import PICTURE, draw, verdicts
from crashed_topologies import CRASHES, Cell, Chaos, Crash, Outcome, Point, Victim, deviations
from kazoo.client import KazooClient
from servers import RedisServer

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis
from kinesis_trident.trident.guarantees import EXACTLY_ONCE

WHOLE_JOB = [
    # The first test waits for the whole chain of deaths.
    pytest.mark.timeout(2400),
    # The module's job is begun anew; the Makefile says what these two are.
    pytest.mark.flaky(reruns=2, only_rerun=["connect back", "Illegal size"]),
]
pytestmark = WHOLE_JOB


@pytest.fixture(scope="module")
def deaths() -> list[Crash]:
    """The crashes that the job goes through."""
    return [Crash(Victim.DRIVER, Point.DURING)]


@pytest.fixture(scope="module")
def spouts() -> Sequence[str]:
    """The columns of the matrix that are played."""
    return ["opaque"]


@pytest.fixture(scope="module")
def outcomes(
    deaths: list[Crash],
    spouts: Sequence[str],
    zookeeper: EmbeddedZooKeeper,
    keeper: KazooClient,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Outcome]:
    """Return what every crash has done to every cell."""
    assert set(deaths) <= set(CRASHES)
    folder = tmp_path_factory.mktemp("chaos")
    with ScriptedKinesis(quotas=Quotas.none()) as kinesis:
        return Chaos(folder, kinesis, keeper, zookeeper.hosts, redis_server.url, spouts).outcomes(deaths)


def test_a_cell_that_promises_it_is_exact(
    outcomes: list[Outcome], deaths: list[Crash], spouts: Sequence[str]
) -> None:
    promised = [Cell(spout, state) for spout, state in sorted(EXACTLY_ONCE) if spout in spouts]
    assert promised
    for cell in promised:
        of_cell = [outcome for outcome in outcomes if outcome.cell == cell]
        assert len(of_cell) == len(deaths)
        assert deviations(of_cell) == []


def test_the_picture_in_the_docs_says_what_was_seen(outcomes: list[Outcome]) -> None:
    seen = {(outcome.cell, outcome.crash): outcome.exact for outcome in outcomes}
    drawn = verdicts(PICTURE.read_text())
    assert {key: drawn[key] for key in seen} == seen
    assert verdicts(draw(outcomes)) == seen
