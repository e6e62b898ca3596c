"""The steps of a real job are read from what it leaves, and refused where one of them is missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient

from chaos.trace import Traced, follow_job
from chaos.zookeeper_log import Change, read_transactions
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

TRACE = Path(__file__).with_name("job_trace.json")
"""Of `make faults SEED=22`: the driver is killed in the first batch, and another run takes it over."""


@pytest.fixture(scope="module")
def job() -> Traced:
    return msgspec.json.decode(TRACE.read_bytes(), type=Traced)


def test_a_job_takes_the_steps_of_the_specification(job: Traced) -> None:
    steps, refused = follow_job(job)
    assert refused == ""
    assert steps >= 25


def require_each(job: Traced, name: str) -> None:
    """Refuse a job without one of its writes: of all but the last one, after which nothing is seen."""
    last = job.transactions[-1]
    made = [
        one
        for one in job.transactions
        if one != last and any(x.kind != "delete" and f"/{name}" in x.path and x.data for x in one.changes)
    ]
    assert made
    for one in made:
        left = [other for other in job.transactions if other != one]
        assert follow_job(job._replace(transactions=left))[1], one


@pytest.mark.parametrize("name", ["batches", "acks", "checkpoints", "judging", "settled"])
def test_a_job_without_one_of_its_writes_is_refused(job: Traced, name: str) -> None:
    require_each(job, name)


def test_a_job_that_writes_other_rows_is_refused(job: Traced) -> None:
    assert job.written is not None
    for one in job.written:
        other = [each._replace(numbers=each.numbers[1:]) if each == one else each for each in job.written]
        assert follow_job(job._replace(written=other))[1], one


def test_a_job_that_goes_on_without_a_commit_of_spark_is_refused(job: Traced) -> None:
    for one in [entry for entry in job.entries[:-1] if not entry.offset]:
        left = [other for other in job.entries if other != one]
        assert follow_job(job._replace(entries=left))[1], one


MATRIX_TRACE = Path(__file__).with_name("matrix_trace.json")
"""Of tests/e2e/chaos_cells.py, `spout=opaque`: the driver is killed in a batch, and retention takes a part of that."""


@pytest.fixture(scope="module")
def expired() -> Traced:
    return msgspec.json.decode(MATRIX_TRACE.read_bytes(), type=Traced)


def test_a_job_whose_records_expire_takes_the_steps_of_the_specification(expired: Traced) -> None:
    assert any(numbers for _, numbers in expired.trimmed)
    steps, refused = follow_job(expired)
    assert refused == ""
    assert steps >= 40


@pytest.mark.parametrize("name", ["acks", "checkpoints", "judging", "settled"])
def test_a_job_whose_records_expire_is_refused_without_one_of_its_writes(expired: Traced, name: str) -> None:
    require_each(expired, name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that has ended, to which one session wrote."""
    folder = tmp_path_factory.mktemp("server")
    with EmbeddedZooKeeper(folder) as server:
        client = KazooClient(server.hosts)
        client.start()
        client.create("/a", b"x")
        client.set("/a", b"y")
        for version in (1, 7):
            multi = client.transaction()
            multi.check("/a", version)
            multi.create("/b", b"1")
            multi.set_data("/b", b"2")
            multi.commit()
        client.delete("/b")
        client.stop()
        client.close()
    return folder


def test_a_zookeeper_logs_each_write_with_its_checks(server: Path) -> None:
    written = [one for one in read_transactions([server]) if one.changes]
    assert len({one.session for one in written}) == 1
    assert [one.changes for one in written] == [
        (Change("create", "/a", b"x"),),
        (Change("set", "/a", b"y", 1),),
        (Change("check", "/a", b"", 2), Change("create", "/b", b"1"), Change("set", "/b", b"2", 1)),
        (Change("delete", "/b"),),
    ]


def test_what_a_minority_has_logged_was_not_committed(server: Path, tmp_path: Path) -> None:
    """Two of three servers were killed while they wrote a transaction; the disk has a part of it."""
    whole = read_transactions([server])
    (log,) = server.rglob("version-2/log.*")
    data = log.read_bytes()
    torn = data[: data.index(b"/b", data.index(b"/b") + 10) + 1] + bytes(64)
    others = [tmp_path / str(number) / "version-2" for number in range(2)]
    for folder in others:
        folder.mkdir(parents=True)
        (folder / log.name).write_bytes(torn)
    others = [folder.parent for folder in others]
    assert read_transactions(others) == read_transactions([server, *others])
    assert 0 < len(read_transactions(others)) < len(whole)
