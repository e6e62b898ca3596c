"""The sinks when a worker dies that has written: its task is tried again, and its rows count once."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from harness import run_script
from pyiceberg.catalog import load_catalog
from server_fixtures import empty_database


@pytest.mark.long
def test_a_worker_that_has_written_dies_before_the_driver_hears_of_it(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """tests/test_sinks.py has the late task of an attempt that was cancelled, in each run; here Spark tries again."""
    table = tmp_path / "delta"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    load_catalog(**catalog).create_namespace("shop")
    database = empty_database("postgres", request, tmp_path)
    asked = {"delta": str(table), "catalog": catalog, "database": database}
    run_script("sinks_driver.py", tmp_path, asked)
    ids = [*range(40)]
    found = DeltaTable(table)
    assert sorted(found.to_pyarrow_table()["id"].to_pylist()) == ids
    # The files of both tasks, and those of the worker that died.
    written = {path.name for path in table.rglob("*.parquet")}
    assert len(written) > len(found.file_uris()) == 2
    rows = load_catalog(**catalog).load_table("shop.orders").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == ids
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        assert sorted(connection.exec_driver_sql("SELECT id FROM orders").scalars()) == ids
    engine.dispose()
