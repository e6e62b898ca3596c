"""Another writer acts on a table at each step of a batch: it can be read, and has the batch once, or refuses it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from doc_tables import MEANWHILE_TABLE
from hypothesis import HealthCheck, given, settings, strategies as st
from local_rows import local_rows
from meanwhile import ADDED, AGAIN, DEEDS, REFUSED, STEPS, TABLE, Deed, catalog_at, delta_at, rows_of
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from tenacity import wait_none
from thorough import examples

from kinesis_trident import Outcomes, write_delta, write_iceberg
from kinesis_trident.bolt.errors import BatchFailedError, SinkError, TableChangedError, TargetAwayError
from kinesis_trident.bolt.sinks import commit
from kinesis_trident.checkpoint.errors import FencedError

LOOKED, WRITTEN, COMMIT = STEPS
OURS = ["a", "b"]
COMMITS = {"delta": (DeltaTable, "create_write_transaction"), "iceberg": (SqlCatalog, "commit_table")}
Plan = dict[str, Callable[[], object]]


@contextmanager
def acting(kind: str, plan: Plan) -> Iterator[None]:
    """Let another writer act right before the next commit."""
    owner, name = COMMITS[kind]
    commit = getattr(owner, name)

    def committed(*given: Any, **named: Any) -> Any:
        plan.pop(COMMIT, bool)()
        return commit(*given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, committed)
        yield


def write(kind: str, folder: Path, orders: list[str], outcomes: Outcomes, plan: Plan) -> None:
    acts = (lambda step=step: plan.pop(step, bool)() for step in (LOOKED, WRITTEN))
    rows = local_rows(rows_of(*orders), *acts)
    with acting(kind, plan):
        if kind == "delta":
            write_delta(rows, outcomes, str(delta_at(folder)))
        else:
            write_iceberg(rows, outcomes, TABLE, catalog=catalog_at(folder))


def write_as_handlers_do(kind: str, folder: Path, orders: list[str], txid: int, plan: Plan) -> str:
    """Write a batch; one that failed as a whole is tried again in place."""
    ends = ADDED
    for _ in range(4):
        try:
            write(kind, folder, orders, Outcomes(1, "shop", txid), plan)
        except BatchFailedError:
            ends = AGAIN
        except SinkError:
            return REFUSED
        else:
            return ends
    return REFUSED


def read(kind: str, folder: Path) -> Counter[str]:
    """Return how often each order is there; a reader takes all columns."""
    with suppress(TableNotFoundError, NoSuchTableError):
        if kind == "delta":
            return Counter(DeltaTable(delta_at(folder)).to_pyarrow_table()["order_id"].to_pylist())
        return Counter(catalog_at(folder).load_table(TABLE).scan().to_arrow()["order_id"].to_pylist())
    return Counter()


def begin(kind: str, folder: Path) -> None:
    """Create a table, with a batch in it; a log of Delta may be cleaned up at once."""
    assert write_as_handlers_do(kind, folder, ["first"], 1, {}) == ADDED
    if kind == "delta":
        DeltaTable(delta_at(folder)).alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 0 days"}
        )
        write_deltalake(delta_at(folder), rows_of("other"), mode="append")


CASES = [
    pytest.param(kind, deed, step, id=f"{kind}: {deed.what}, {step}")
    for deed in DEEDS
    for kind in ("delta", "iceberg")
    if getattr(deed, kind) is not None
    for step in STEPS
    if step not in deed.never_at
]


@pytest.mark.parametrize(("kind", "deed", "step"), CASES)
def test_what_another_writer_may_do_meanwhile(tmp_path: Path, kind: str, deed: Deed, step: str) -> None:
    begin(kind, tmp_path)
    ends = write_as_handlers_do(kind, tmp_path, OURS, 2, {step: lambda: getattr(deed, kind)(tmp_path)})
    found = read(kind, tmp_path)
    assert [found[name] for name in OURS] == ([0, 0] if ends == REFUSED else [1, 1])
    assert ends == (ADDED if step in deed.spares else deed.ends[kind])
    assert getattr(deed, kind) is not None


def test_the_page_has_what_was_played() -> None:
    assert MEANWHILE_TABLE.read() == MEANWHILE_TABLE.render()


@pytest.mark.parametrize("kind", COMMITS)
def test_a_batch_without_rows_that_comes_again_keeps_an_older_run_out(tmp_path: Path, kind: str) -> None:
    for epoch in (1, 2):
        write(kind, tmp_path, [], Outcomes(epoch, "orders-job", 5), {})
    with pytest.raises(FencedError):
        write(kind, tmp_path, ["late"], Outcomes(1, "orders-job", 5), {})
    assert not read(kind, tmp_path)


def test_a_batch_that_others_always_come_before_is_tried_again_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Delta lets both commit: neither has read what the other adds.
    kind = "iceberg"
    begin(kind, tmp_path)
    monkeypatch.setattr(commit, "wait_random_exponential", lambda **_: wait_none())
    monkeypatch.setattr(commit, "_TRIES", 3)
    owner, name = COMMITS[kind]
    put, writing = getattr(owner, name), False

    def before(*given: Any, **named: Any) -> Any:
        nonlocal writing
        if not writing:
            writing = True
            write(kind, tmp_path, ["c"], Outcomes(1, f"other-{uuid4().hex}", 1), {})
            writing = False
        return put(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, before)
        with pytest.raises(TargetAwayError, match="3 tries: other writers of the table came before"):
            write(kind, tmp_path, ["d"], Outcomes(1, "orders-job", 9), {})
    write(kind, tmp_path, ["d"], Outcomes(1, "orders-job", 9), {})
    assert read(kind, tmp_path)["d"] == 1


def test_two_applications_that_create_one_iceberg_table_at_once(tmp_path: Path) -> None:
    def other() -> None:
        write("iceberg", tmp_path, ["theirs"], Outcomes(1, "other", 1), {})

    write("iceberg", tmp_path, OURS, Outcomes(1, "shop", 1), {COMMIT: other})
    assert read("iceberg", tmp_path) == Counter(["theirs", *OURS])


def test_applications_that_create_one_delta_table_at_once(tmp_path: Path) -> None:
    applications = [f"shop-{number}" for number in range(4)]
    at_once = Barrier(len(applications))

    def begin_at_once(name: str) -> None:
        at_once.wait()
        for _ in range(4):
            # Delta lets one of them set the columns once more: the table is another one, and the batch tried again.
            with suppress(BatchFailedError):
                return write_delta(local_rows(rows_of(name)), Outcomes(1, name, 1), str(delta_at(tmp_path)))
        pytest.fail(f"{name} cannot write")

    with ThreadPoolExecutor(len(applications)) as pool:
        assert list(pool.map(begin_at_once, applications)) == [None] * len(applications)
    assert read("delta", tmp_path) == Counter(applications)


def test_the_reasons_are_named_and_an_attempt_that_is_refused_leaves_the_table_as_it_is(
    tmp_path: Path,
) -> None:
    begin("delta", tmp_path)
    deeds = {deed.what: deed for deed in DEEDS}

    def act() -> None:
        for what in ("sets `delta.appendOnly`", "adds a constraint"):
            deeds[what].delta(tmp_path)

    said = (
        "orders was changed while batch 2 was written to it, and nothing of the batch was added: delta.appendOnly is "
        "true, and was not set; delta.constraints.positive is version > 0, and was not set; its protocol is 1 3, and "
        "was 1 2. Write the batch again, to the table as it is now"
    )
    with pytest.raises(TableChangedError, match=re.escape(said)):
        write("delta", tmp_path, OURS, Outcomes(1, "shop", 2), {WRITTEN: act})
    assert read("delta", tmp_path) == Counter(["first", "other"])


PLANS = st.tuples(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(range(len(DEEDS)))), max_size=3),
    st.lists(st.sampled_from(range(len(DEEDS))), max_size=1),
)
"""A batch that comes again or not, what another writer does at its steps, and before it."""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_table_can_be_read_and_holds_the_batch_once_or_it_was_refused(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(
        max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(PLANS)
    def play(plans: tuple[bool, list[tuple[str, int]], list[int]]) -> None:
        is_again, steps, before = plans
        folder = tmp_path_factory.mktemp("t")
        begin(kind, folder)

        def act(number: int) -> None:
            # Another writer may be refused as well: the column is gone.
            with suppress(Exception):
                getattr(DEEDS[number], kind)(folder)

        if is_again:
            assert write_as_handlers_do(kind, folder, ["a", "x"], 2, {}) == ADDED
        for number in before:
            act(number)
        plan: Plan = {
            step: lambda number=number: act(number)  # type: ignore[misc]
            for step, number in steps
            if step not in DEEDS[number].never_at
        }
        ends = write_as_handlers_do(kind, folder, OURS, 2, plan)
        found = read(kind, folder)
        if ends == REFUSED:
            assert all(found[name] <= is_again for name in ("a", "x"))
            assert not found["b"]
        else:
            assert (found["a"], found["b"], found["x"]) == (1, 1, 0)

    play()
