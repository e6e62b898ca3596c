"""Sketches that other programs have written or damaged: no bytes end the process that reads them."""

from __future__ import annotations

import random
from base64 import b64encode
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("datasketches")

from datasketches import hll_sketch, kll_doubles_sketch
from exploring import explores
from hostility import EXAMPLES
from sketch_reading import SAMPLES, read_damaged, read_everything
from thorough import CHAOS

from kinesis_trident.trident.sketch_bytes import checked_hll, checked_kll_doubles


@explores
def test_damaged_sketches_do_not_end_the_process(tmp_path: Path) -> None:
    last = tmp_path / "last"
    seed = random.SystemRandom().randrange(2**32) if CHAOS else 1
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            pool.submit(read_damaged, 25 * EXAMPLES, seed, last).result()
        except Exception as error:
            pytest.fail(f"{b64encode(last.read_bytes()).decode()} of seed {seed}: {error!r}")


def test_each_form_of_a_sketch_is_read_as_it_was_written() -> None:
    for data in SAMPLES:
        assert read_everything(data) == 1
        if data[2] == 7:
            found, written = hll_sketch.deserialize(checked_hll(data)), hll_sketch.deserialize(data)
            assert found.get_estimate() == written.get_estimate()
            # A hash table may be filled in another order.
            assert sorted(found.serialize_compact()) == sorted(written.serialize_compact())
        else:
            assert checked_kll_doubles(data) == data == kll_doubles_sketch.deserialize(data).serialize()
