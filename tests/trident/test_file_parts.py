"""A state in files writes each key once in so many batches: none writes all, and a crash loses nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from earlier_files import EarlierWriter, read_folder
from hypothesis import given, settings, strategies as st

from benchmarks.growth import file_batches
from kinesis_trident.common.folder import Folder
from kinesis_trident.trident.stores.files import FileByteStore

KEYS = [f"key-{number}" for number in range(7)]
Batch = Mapping[str, bytes | None]
BATCHES = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=3), min_size=1), max_size=24
)


class CrashError(Exception):
    """The process ends here."""


@dataclass
class Disk:
    """Counts what is done to files, and crashes at some of it: before it is done, or after."""

    crashes: Mapping[int, bool] = field(default_factory=dict)
    calls: int = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        with (
            patch.object(Folder, "write", self._watch(Folder.write)),
            patch.object(Folder, "remove", self._watch(Folder.remove)),
        ):
            yield

    def _watch(self, call: Callable[..., None]) -> Callable[..., None]:
        def watched(folder: Folder, name: str, *data: bytes) -> None:
            self.calls += 1
            is_done = self.crashes.get(self.calls)
            if is_done is not False:
                call(folder, name, *data)
            if is_done is not None:
                raise CrashError

        return watched


def content(store: FileByteStore) -> dict[str, bytes]:
    names = store.names()
    return {
        name: value for name, value in zip(names, store.get_many(names)[0], strict=True) if value is not None
    }


def after(values: dict[str, bytes], batch: Batch) -> dict[str, bytes]:
    return {key: value for key, value in {**values, **batch}.items() if value is not None}


def write(store: FileByteStore, txid: int, batch: Batch) -> None:
    store.set_many(list(batch), list(batch.values()))
    store.end_batch(txid)


def play(batches: list[Batch], interval: int, crashes: Mapping[int, bool]) -> int:
    """Play batches and crashes, and look at what is found after each; return the number of calls."""
    disk, values = Disk(crashes), dict[str, bytes]()
    with TemporaryDirectory() as folder, disk.watched():
        store: FileByteStore | None = None
        for txid, batch in enumerate(batches, start=1):
            wanted = after(values, batch)
            while True:
                try:
                    store = store or FileByteStore(folder, snapshot_interval=interval)
                    write(store, txid, batch)
                    break
                except CrashError:
                    store = None
                    assert content(FileByteStore(folder)) in (values, wanted)
            values = wanted
            assert content(store) == values
            # Whoever opens the folder now, of this release or the one before, finds the same.
            assert content(FileByteStore(folder)) == read_folder(Path(folder)) == values
    return disk.calls


@settings(deadline=None, max_examples=60)
@given(BATCHES, st.integers(1, 5), st.dictionaries(st.integers(1, 60), st.booleans(), max_size=4))
def test_a_crash_at_any_write_loses_nothing(
    batches: list[Batch], interval: int, crashes: Mapping[int, bool]
) -> None:
    play(batches, interval, crashes)


@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_at_each_write_loses_nothing(is_done: bool) -> None:
    random = Random(5)
    batches: list[Batch] = [
        {key: random.choice([None, b"%d" % number]) for key in random.sample(KEYS, 2)} for number in range(10)
    ]
    calls = play(batches, 3, {})
    assert calls > 2 * len(batches)
    for call in range(1, calls + 1):
        play(batches, 3, {call: is_done})


def test_a_folder_of_an_earlier_release_is_read_on_and_back(tmp_path: Path) -> None:
    random, values = Random(3), dict[str, bytes]()
    for run in range(12):
        if random.random() < 0.5:
            now = FileByteStore(str(tmp_path), snapshot_interval=random.randint(1, 4))
            assert content(now) == values
        else:
            before = EarlierWriter(tmp_path)
            now = None
        for number in range(random.randint(1, 15)):
            batch: dict[str, bytes | None] = dict.fromkeys(random.sample(KEYS, 2), b"%d-%d" % (run, number))
            batch[random.choice(KEYS)] = None
            values = after(values, batch)
            if now is None:
                before.write(batch)
            else:
                write(now, number, batch)
            assert read_folder(tmp_path) == values


def test_a_key_that_has_expired_is_written_no_more(tmp_path: Path) -> None:
    now = 0.0
    store = FileByteStore(str(tmp_path), 10, snapshot_interval=4, clock=lambda: now)
    write(store, 0, dict.fromkeys(KEYS, b"first"))
    for txid in range(1, 30):
        now = float(txid)
        write(store, txid, {"later": b"%d" % txid})
    assert [*store.names()] == ["later"]
    # Nor does a file hold it, once it would have been written again.
    assert FileByteStore(str(tmp_path), 10, clock=lambda: 0.0).names() == ["later"]


def test_memory_is_for_keys_and_not_for_the_interval(tmp_path: Path) -> None:
    # What is loaded at the first use is not counted.
    write(FileByteStore(str(tmp_path)), 1, {"key": b"1"})
    tracemalloc.start()
    try:
        write(FileByteStore(str(tmp_path), snapshot_interval=10**5), 1, {"key": b"1"})
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def test_the_largest_batch_writes_little_more_than_the_others() -> None:
    sizes = file_batches(6_000, 20, 80)
    assert max(sizes) <= 1.5 * median(sizes)


def test_what_a_batch_writes_grows_as_the_keys_do() -> None:
    small, large = (median(file_batches(keys, 20, 40)) for keys in (3_000, 12_000))
    assert large <= 4.6 * small


def test_the_batches_that_hold_every_key_are_kept_and_few_others(tmp_path: Path) -> None:
    interval = 10
    store, most = FileByteStore(str(tmp_path), snapshot_interval=interval), 0
    for txid in range(8 * interval):
        write(store, txid, {"key": b"%d" % txid})
        most = max(most, len(list(tmp_path.iterdir())))
    assert most <= interval + 3
