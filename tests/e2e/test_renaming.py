"""An application with another name: what it has written into its sinks and states is known, and nothing comes twice."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from harness import PATIENCE
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame
from stage import AVAILABLE_NOW, Stage, ended, error_of
from typer.testing import CliRunner

from kinesis_trident import Outcomes, merge_into, write_delta, write_iceberg
from kinesis_trident.console.cli import app as console
from kinesis_trident.trident import Count, FileState, TridentTopology


def typed(line: str) -> str:
    """Type a line that an error has printed, and agree."""
    words = shlex.split(line)
    assert words[0] == "kinesis-trident"
    ran = CliRunner().invoke(console, [*words[1:], "--yes"])
    assert ran.exit_code == 0, ran.output
    return ran.output


def parsed(stage: Stage, name: str) -> Any:
    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "poison":
            raise ValueError(text)
        return text, record.attempt

    options = {"applicationName": name, "retryLimit": 0, "deadLetter": stage.at("letters")}
    return stage.parsed(parse, **options)


def test_a_batch_that_sinks_have_and_spark_has_not_comes_once(stage: Stage) -> None:
    """Its letter too: it was written under the first name, and a replay of the batch finds it there."""
    delta, url = stage.at("table"), f"sqlite:///{stage.at('shop.db')}"
    catalog = SqlCatalog(
        "local", uri=f"sqlite:///{stage.at('catalog.db')}", warehouse=f"file://{stage.folder}"
    )
    catalog.create_namespace("shop")
    crashes = False

    def write(rows: DataFrame, _txid: int, outcomes: Outcomes) -> None:
        rows = rows.select("text")
        write_delta(rows, outcomes, delta)
        write_iceberg(rows, outcomes, "shop.orders", catalog=catalog)
        merge_into(rows, outcomes, url, "orders", key="text", order_by="text")
        if crashes:
            msg = "the driver is gone"
            raise ConnectionError(msg)

    def written() -> list[list[str]]:
        with sa.create_engine(url).connect() as connection:
            merged = connection.execute(sa.text("SELECT text FROM orders")).scalars().all()
        files = DeltaTable(delta).to_pyarrow_table().column("text").to_pylist()
        iced = catalog.load_table("shop.orders").scan().to_arrow().column("text").to_pylist()
        return [sorted(files), sorted(iced), sorted(merged)]

    stage.put(["a", "b", "poison"])
    ended(stage.start(parsed(stage, stage.app), write, trigger=AVAILABLE_NOW))
    stage.put(["c", "d"])
    crashes = True
    error = error_of(stage.start(parsed(stage, stage.app), write, trigger=AVAILABLE_NOW))
    assert "the driver is gone" in error
    crashes = False
    assert written() == [["a", "b", "c", "d"]] * 3

    new = f"{stage.app} of the shop"
    said = error_of(stage.start(parsed(stage, new), write, trigger=AVAILABLE_NOW))
    assert "CheckpointMismatchError" in said
    (line,) = set(re.findall(r"run `(kinesis-trident rename [^`]+)`", said))
    # The Spark application goes on, and with it the planning processes.
    assert "is called" in typed(f"{line} --force")
    stage.put(["e"])
    ended(stage.start(parsed(stage, new), write, trigger=AVAILABLE_NOW))
    assert written() == [["a", "b", "c", "d", "e"]] * 3
    (letter,) = stage.letters()
    assert letter.data == b"poison"
    assert "RenamedError" in error_of(stage.start(parsed(stage, stage.app), write, trigger=AVAILABLE_NOW))
    assert written() == [["a", "b", "c", "d", "e"]] * 3


@pytest.mark.long
def test_a_state_counts_on(stage: Stage) -> None:
    def ran(name: str) -> None:
        topology = TridentTopology(stage.spark)
        lines = topology.new_stream("lines", stage.load(applicationName=name))
        text = lines.map(lambda tup: [tup["data"].decode()], "text string")
        text.group_by(["text"]).persistent_aggregate(state, Count(), ["n"])
        running = topology.start(checkpointLocation=stage.at("spark"), trigger=AVAILABLE_NOW)
        stage.queries += running.queries.values()
        assert running.await_termination(PATIENCE)
        running.stop()

    state = FileState.opaque(stage.at("state"))
    stage.put(["a"] * 3)
    ran(stage.app)
    new = f"{stage.app}-new"
    typed(shlex.join(["kinesis-trident", "rename", stage.app, new, "--zookeeper", stage.hosts]))
    stage.put(["a"] * 2)
    ran(new)
    assert state.make_state({}, 0, 1).multi_get([("a",)]) == [5]
