"""The jobs of docker-compose.yml: on a Spark of a master and two workers, beside all other services."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from composition import ENDS, Composition

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def composition(
    program_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Composition]:
    running = Composition(tmp_path_factory.mktemp("composition"), program_of)
    try:
        yield running.start(ENDS)
    finally:
        running.stop()


def test_the_words_are_counted_in_redis(composition: Composition) -> None:
    printed = composition.run("words").splitlines()
    assert printed[0] == "4 the", printed


def test_the_demo_ends_well(composition: Composition) -> None:
    printed = composition.run("demo", "--orders", "8000")
    assert "everything is as expected" in printed.splitlines()[-1], printed
