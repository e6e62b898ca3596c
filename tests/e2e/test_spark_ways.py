"""docs/spark.md: a state of Spark's own, a pipeline, triggers without batches, a checkpoint without its metadata."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from doc_blocks import with_ours
from older_spark import needs_pipelines, needs_reports
from pyspark.sql import SparkSession
from stage import Stage, ended, error_of

from kinesis_trident.checkpoint.embedded.java import ensure_java

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
TEXT = PAGE.read_text(encoding="utf-8")
STORE = "spark.sql.streaming.stateStore.providerClass"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def _own_store(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(STORE)


@pytest.mark.long
@pytest.mark.usefixtures("_own_store")
def test_a_state_of_sparks_own_goes_on_after_a_restart(stage: Stage) -> None:
    code = blocks("python")[0]
    ours = {
        '"streamName", "orders"': f'"streamName", {stage.stream!r}',
        '"region", "eu-west-1"': f'"endpointUrl", {stage.endpoint!r}',
        '"order-totals"': repr(stage.app),
        "zk1:2181,zk2:2181,zk3:2181": stage.hosts,
        "s3a://my-bucket": str(stage.folder),
        '.outputMode("append")': '.outputMode("append").trigger(availableNow=True)',
    }
    code = with_ours(code, ours)
    for amounts in (["1", "2"], ["2", "30"]):
        stage.put(amounts)
        names: dict[str, Any] = {"__name__": "__main__", "spark": stage.spark}
        exec(compile(code, "spark.md", "exec"), names)
        ended(names["query"])
    rows = pq.read_table(stage.folder / "order-totals").to_pylist()
    assert sorted((row["customer"], row["total"]) for row in rows) == [
        ("1", 1.0),
        ("2", 2.0),
        ("2", 4.0),
        ("30", 30.0),
    ]


def test_spark_refuses_a_plain_query_that_runs_no_micro_batches(stage: Stage) -> None:
    stage.put(["a"])
    texts = stage.load().selectExpr("CAST(data AS STRING) text")
    out = (
        texts.writeStream.format("console")
        .outputMode("update")
        .option("checkpointLocation", stage.at("spark"))
    )
    with pytest.raises(Exception, match="kinesis-trident does not support continuous processing"):
        out.trigger(continuous="1 second").start()
    if "realTime" in signature(out.trigger).parameters:
        said = error_of(out.trigger(realTime="5 minutes").start())
        assert "[STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED]" in said
    else:
        with pytest.raises(TypeError, match="realTime"):
            out.trigger(realTime="5 minutes")
    assert stage.tree() == {}


@needs_reports
def test_a_query_whose_checkpoint_has_lost_its_metadata_goes_on_from_zookeeper(stage: Stage) -> None:
    stage.put(["a"])
    assert stage.drained(stage.parsed()).texts == ["a"]
    stage.put(["b"])
    Path(stage.at("spark"), "metadata").unlink()
    with pytest.raises(Exception, match="STREAMING_CHECKPOINT_MISSING_METADATA_FILE"):
        stage.drained(stage.parsed())
    assert stage.drained(stage.parsed(), checkpoint="another").texts == ["b"]


@needs_pipelines
@pytest.mark.long
def test_a_declarative_pipeline_reads_on_with_each_run(stage: Stage, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "transformations").mkdir(parents=True)
    (spec,), (_, code) = blocks("yaml"), blocks("python")
    (project / "spark-pipeline.yml").write_text(
        with_ours(spec, {"/mnt/pipelines": str(tmp_path / "storage")})
    )
    ours = {
        '"streamName", "orders"': f'"streamName", {stage.stream!r}',
        '"region", "eu-west-1"': f'"endpointUrl", {stage.endpoint!r}',
        '"raw-orders"': repr(stage.app),
        "zk1:2181,zk2:2181,zk3:2181": stage.hosts,
    }
    (project / "transformations" / "orders.py").write_text(with_ours(code, ours))
    program, *arguments = re.search(r"^    (spark-pipelines .+)$", TEXT, re.MULTILINE)[1].split()  # type: ignore[index]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_DRIVER_PYTHON"}
    for texts in (["a", "b"], ["c"]):
        stage.put(texts)
        ended = subprocess.run(
            [str(Path(sys.executable).parent / program), *arguments],
            cwd=project,
            env=environment | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(ensure_java())},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    (folder,) = (path for path in project.rglob("raw_orders") if path.is_dir())
    rows = [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert sorted(row["json"] for row in rows) == ["a", "b", "c"]
