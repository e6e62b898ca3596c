"""Payloads of failed records kept in a folder: what is retried is not read from the stream again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pytest
import xxhash
from by_hand import Lives, Query, numbers
from found_records import records
from hypothesis import HealthCheck, given, settings, strategies as st

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.spout.errors import SpoolError
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.records import RecordPosition, Run

SHARD = "shardId-000000000000"
LAYOUT = Layout("/root", "app", "orders", 1)
Start = Callable[..., Query]


def payloads(batches: list[pa.RecordBatch]) -> list[str]:
    return [data.decode() for batch in batches for data in batch.column("data").to_pylist()]


# Numbers of one digit and of eleven, records that stand alone and aggregates.
POSITIONS = st.builds(
    RecordPosition, st.integers(1, 30).map(lambda n: n if n % 2 else n + 10**10), st.integers(-1, 2)
)


@given(st.sets(POSITIONS, min_size=1), st.data())
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_was_kept_is_found_by_its_runs_once_and_in_order(
    tmp_path: Path, found: set[RecordPosition], data: st.DataObject
) -> None:
    # Of its own for each example: `random` is seeded anew before each, and what one left behind is not the next one's.
    spool = RetrySpool(mkdtemp(dir=tmp_path), LAYOUT)
    ordered = sorted(found)
    kept: set[RecordPosition] = set()
    for txid in range(1, data.draw(st.integers(1, 4)) + 1):
        some = data.draw(st.permutations(sorted(data.draw(st.sets(st.sampled_from(ordered))))))
        spool.put(SHARD, txid, [records([at]) for at in some])
        kept |= set(some)
    runs = [Run(first=str(at), last=str(at)) for at in ordered]
    got = spool.get(SHARD, runs)
    assert [payloads(got.of_run(index)) for index in range(len(runs))] == [
        [str(at)] if at in kept else [] for at in ordered
    ]
    left = data.draw(st.sets(st.sampled_from(ordered)))
    spool.clean(9, {SHARD: [run for run, at in zip(runs, ordered, strict=True) if at in left]})
    again = spool.get(SHARD, runs).counts > 0
    assert {at for at, is_kept in zip(ordered, again, strict=True) if is_kept} >= kept & left
    spool.clean(9, {})
    assert not spool.get(SHARD, runs).reached.any()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=1), st.integers(0, 2_000))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_within_a_bound_the_first_runs_are_found_whole(
    tmp_path: Path, files: list[tuple[int, int]], most: int
) -> None:
    spool = RetrySpool(mkdtemp(dir=tmp_path), LAYOUT)
    for txid, (first, more) in enumerate(files, 1):
        spool.put(SHARD, txid, [records([RecordPosition(first), RecordPosition(first + more)])])
    runs = [Run(first=str(at), last=str(at)) for at in range(1, 40)]
    everything, found = spool.get(SHARD, runs), spool.get(SHARD, runs, most)
    reached = len(found.counts)
    assert 1 <= reached <= len(runs)
    assert [payloads(found.of_run(index)) for index in range(reached)] == [
        payloads(everything.of_run(index)) for index in range(reached)
    ]


def test_as_many_failed_records_come_back_as_a_turn_may_hold(
    make_lives: Callable[..., Lives], tmp_path: Path
) -> None:
    """They wait for hours where a sink is down, and would not fit into the memory of a task together."""
    memory = MemoryKinesis(shards=1)
    [shard] = memory.open_shards
    for number in range(9):
        memory.put(shard, (b"%d" % number).ljust(4096))
    bounds = {"maxRecordsPerTrigger": "1", "maxFetchBytesPerShard": "16KiB", "retryBytesPerShard": "4KiB"}
    lives = make_lives(retryLimit="99", retrySpool=str(tmp_path), **bounds)
    query, every = lives.begin(memory), range(9)
    first = [query.batch(failing=every) for _ in every]
    # The shard has nothing new: each batch is one of retries, which are all in the folder before long.
    later = [query.batch(failing=every) for _ in range(12)]
    assert {row[0] for rows in first for row in rows} == set(every)
    assert max(len(rows) for rows in later[-3:]) <= 4
    assert numbers(query.drain()) == [*every]


def test_files_of_a_batch_that_is_not_settled_stay(tmp_path: Path) -> None:
    spool = RetrySpool(str(tmp_path), LAYOUT)
    at = RecordPosition(7)
    spool.put(SHARD, 3, [records([at])])
    spool.put(SHARD, 3, [records([at])])
    assert spool.clean(2, {}) == 0
    assert spool.clean(3, {}) == 1


def test_what_killed_tasks_have_not_ended_goes_once_it_is_a_day_old(tmp_path: Path) -> None:
    spool = RetrySpool(str(tmp_path), LAYOUT)
    spool.put(SHARD, 3, [records([RecordPosition(7)])])
    (file,) = tmp_path.rglob("*.arrow")
    old, new = (file.parent / f".{one * 32}" for one in "ab")
    for part in (old, new):
        part.write_bytes(b"half of a")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    assert spool.clean(2, {}) == 0
    assert (old.exists(), new.exists(), file.exists()) == (False, True, True)


@pytest.mark.parametrize("layout", [LAYOUT, Layout("/root", "app")])
def test_rows_of_several_shards_are_kept_each_under_its_shard(tmp_path: Path, layout: Layout) -> None:
    spool = RetrySpool(str(tmp_path), layout, {"orders": 1})
    rows = []
    for number, shard in enumerate(("a", "b", "a"), 1):
        columns = records([RecordPosition(number)]).columns
        found = dict(zip(RECORD_SCHEMA.names, columns, strict=True))
        found |= {"stream": pa.array(["orders"]), "shardId": pa.array([shard])}
        rows.append(pa.RecordBatch.from_pydict(found))
    spool.put_rows(1, rows)
    every = [Run(first=str(number), last=str(number)) for number in (1, 2, 3)]
    names = [layout.name_of(ShardKey("orders", 1, shard)) for shard in "ab"]
    assert [(spool.get(name, every).counts > 0).nonzero()[0].tolist() for name in names] == [[0, 2], [1]]
    assert spool.clean(1, {names[0]: every}) == 1


def test_a_file_of_the_first_release_is_read(tmp_path: Path) -> None:
    """It said that a partition key is never null."""
    spool = RetrySpool(str(tmp_path), LAYOUT)
    spool.put(SHARD, 1, [records([RecordPosition(7)])])
    [file] = tmp_path.rglob("*.arrow")
    [batch] = pa.ipc.open_stream(file.read_bytes()).read_all().to_batches()
    old = RECORD_SCHEMA.set(0, RECORD_SCHEMA.field(0).with_nullable(False))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, old) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=old))
    data = sink.getvalue().to_pybytes()
    file.with_name(f"000000000001-7-7-{xxhash.xxh3_64_hexdigest(data)}.arrow").write_bytes(data)
    file.unlink()
    [found] = spool.get(SHARD, [Run(first="7", last="7")]).of_run(0)
    assert found.schema == RECORD_SCHEMA
    assert found.column("data").to_pylist() == [b"7"]


def test_a_file_that_cannot_be_read_counts_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = RetrySpool(str(tmp_path), LAYOUT)
    spool.put(SHARD, 1, [records([RecordPosition(7)])])
    [file] = tmp_path.rglob("*.arrow")
    file.write_bytes(b"torn")
    assert not spool.get(SHARD, [Run(first="7", last="7")]).reached.any()
    assert "reading from the stream instead" in caplog.text


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = RetrySpool(str(tmp_path / "file"), LAYOUT)
    with pytest.raises(SpoolError, match=rf"shard {SHARD}, txid 1 in .*file \(option retrySpool\)"):
        spool.put(SHARD, 1, [records([RecordPosition(7)])])


@pytest.fixture
def kinesis() -> MemoryKinesis:
    return MemoryKinesis()


@pytest.fixture
def start(kinesis: MemoryKinesis, tmp_path: Path, make_lives: Callable[..., Lives]) -> Start:
    """`start(checkpoint=None, **options)`: a life of the query; a new checkpoint by default."""
    folders = {"retrySpool": str(tmp_path / "spool"), "deadLetter": str(tmp_path / "letters")}
    return partial(make_lives(retryLimit="3", onExhausted="deadLetter", **folders).begin, kinesis)


def put(kinesis: MemoryKinesis, count: int) -> int:
    """The numbers from 0 on: the sequence number of the last one."""
    return [kinesis.put(SHARD, str(number).encode()) for number in range(count)][-1]


def test_a_record_that_left_the_stream_after_its_first_retry_is_retried_and_dead_lettered(
    start: Start, kinesis: MemoryKinesis, tmp_path: Path
) -> None:
    last = put(kinesis, 10)
    query = start(retryLimit="2", pace={"look_period": 1.0})
    query.batch(failing={3, 4, 8})
    assert [row[0] for row in query.batch(failing={3, 8})] == [3, 4, 8]
    kinesis.trim(SHARD, last)
    reads = kinesis.calls["get_records", SHARD]
    assert [row[:1] + row[2:3] for row in query.batch(failing={3})] == [(3, 3), (8, 3)]
    assert query.drain() == []
    # What the looks at the tip ask for apart, nothing was read.
    assert kinesis.calls["get_records", SHARD] - reads < 10
    [letter] = read_dead_letters(tmp_path / "letters")
    assert (letter.data, letter.attempts) == (b"3", 3)
    query.run.purge()
    query.end()
    assert list((tmp_path / "spool").rglob("*.arrow")) == []


def test_a_replay_of_a_batch_takes_its_retries_from_the_folder(start: Start, kinesis: MemoryKinesis) -> None:
    last = put(kinesis, 10)
    life = start()
    life.batch(failing={2, 7})
    life.planned()
    rows = life.rows()
    life.end()
    kinesis.trim(SHARD, last)
    assert start(life.checkpoint).rows() == rows


def test_without_its_file_a_retry_comes_from_the_stream(
    start: Start, kinesis: MemoryKinesis, tmp_path: Path
) -> None:
    put(kinesis, 10)
    query = start()
    query.batch(failing={2, 7})
    query.batch(failing={2, 7})
    for file in (tmp_path / "spool").rglob("*.arrow"):
        file.unlink()
    assert [row[0] for row in query.batch()] == [2, 7]
    assert query.drain() == []


def test_no_files_are_left_by_a_second_life_either(
    start: Start, kinesis: MemoryKinesis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    put(kinesis, 10)
    life = start()
    life.batch(failing={1})
    life.batch(failing={1})
    life.end()
    again = start(life.checkpoint)
    assert [row[0] for row in again.drain()] == [1]
    again.run.purge()
    again.end()
    assert list((tmp_path / "spool").rglob("*.arrow")) == []
    assert [one.getMessage() for one in caplog.records if not one.name.endswith("life_log")] == []


def needed(*positions: int) -> list[Run]:
    return [Run(first=str(at), last=str(at)) for at in positions]


def test_two_roots_with_one_application_name_do_not_clean_up_each_other(tmp_path: Path) -> None:
    ours, theirs = (RetrySpool(str(tmp_path), replace(LAYOUT, root=root)) for root in ("/a", "/a/b"))
    for spool, at in ((ours, 7), (theirs, 8)):
        spool.put(SHARD, 1, [records([RecordPosition(at)])])
        assert (spool.get(SHARD, needed(7, 8)).counts > 0).tolist() == [at == 7, at == 8]
    assert ours.clean(9, {}) == 1
    assert theirs.get(SHARD, needed(8)).counts.tolist() == [1]


def name_without_root(folder: Path) -> None:
    """Move all files to where a release has them that has no root in their names."""
    for file in folder.rglob("*.arrow"):
        application, _, *rest = file.relative_to(folder).parts
        target = folder.joinpath(application, *rest)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)


@pytest.mark.parametrize("layout", [LAYOUT, Layout("/", "app")])
def test_files_without_a_root_in_their_names_are_found_and_removed_by_their_own_query(
    tmp_path: Path, layout: Layout
) -> None:
    spool = RetrySpool(str(tmp_path), layout)
    name = layout.name_of(ShardKey("orders", 1, SHARD))
    spool.put(name, 1, [records([RecordPosition(7)])])
    name_without_root(tmp_path)
    assert spool.get(name, needed(7)).counts.tolist() == [1]
    other = RetrySpool(str(tmp_path), replace(layout, root="/other"))
    assert other.clean(9, {name: needed(8)}) == 0
    assert spool.clean(9, {name: needed(7)}) == 0
    assert spool.clean(9, {name: needed(8)}) == 1


@pytest.mark.parametrize("has_root", [True, False])
def test_what_was_kept_before_streams_were_put_together_goes_along(tmp_path: Path, has_root: bool) -> None:
    shared = RetrySpool(str(tmp_path), Layout("/root", "app"))
    for stream in ("orders", "payments"):
        alone = RetrySpool(str(tmp_path), replace(LAYOUT, stream=stream))
        alone.put(SHARD, 5, [records([RecordPosition(7)])])
    if not has_root:
        name_without_root(tmp_path)
    name, other = (f"{stream}@1/{SHARD}" for stream in ("orders", "payments"))
    assert payloads(shared.get(name, needed(7)).of_run(0)) == ["7"]
    assert shared.get(f"orders@2/{SHARD}", needed(7)).counts.tolist() == [-1]
    assert shared.clean(9, {name: needed(7), other: needed(7)}) == 0
    assert shared.clean(9, {name: needed(7), other: []}) == 1
    assert shared.get(name, needed(7)).counts.tolist() == [1]
