"""The guides, a task each: their code runs in one Spark session, on servers of this test, and prints what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_page import ROOT
from guide import Unfinished, page
from older_spark import needs_available_now, needs_filters

from kinesis_trident.testing import ScriptedKinesis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = ROOT / "docs"


def read(folder: Path, pattern: str) -> list[str]:
    """The lines of the files, without Spark's marks."""
    return sorted(line for path in folder.glob(pattern) for line in path.read_text().splitlines())


@needs_available_now
def test_a_reshard(spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    guide = page("resharding", tmp_path, hosts, kinesis)
    guide.check()
    assert len(kinesis.shards("orders")) == 2
    later = ["ann", "bob", "cid", "dan", "eve"]
    assert read(tmp_path, "texts/txid=*/epoch=*/*.txt") == later + [f"orders {number}" for number in range(3)]


@needs_available_now
def test_several_streams(spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    page("several-streams", tmp_path, hosts, kinesis).check()
    for stream in ("orders", "payments"):
        rows = [json.loads(line) for line in read(tmp_path, f"{stream}/txid=*/epoch=*/*.json")]
        assert [(row["kind"], row["text"]) for row in rows] == [
            (stream, f"{stream} {number}") for number in range(3)
        ]


@needs_filters
def test_a_backfill(spark: SparkSession, tmp_path: Path, hosts: str, kinesis: ScriptedKinesis) -> None:
    page("backfill", tmp_path, hosts, kinesis).check()
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    for folder in ("backfill", "hour", "again", "past"):
        rows = spark.read.parquet(str(tmp_path / folder)).collect()
        assert sorted(row.json for row in rows) == [f"orders {number}" for number in range(3)]


@needs_available_now
def test_a_login(
    spark: SparkSession,
    tmp_path: Path,
    hosts: str,
    kinesis: ScriptedKinesis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORDERS_LOGIN", "orders:secret")
    guide = page("security", tmp_path, hosts, kinesis)
    guide.check()
    (policy,) = re.findall(r"^```json\n(.*?)^```$", guide.text, re.MULTILINE | re.DOTALL)
    actions = set(re.findall(r'"(kinesis:\w+)"', policy))
    rows = re.findall(
        r"^\| (`\w+:\w+`.*?) \| (.*?) \| (.*?) \|$", (DOCS / "deploying.md").read_text(), re.MULTILINE
    )
    needed = {
        action
        for names, _, why in rows
        if "consumerMode=efo" not in why
        for action in re.findall(r"kinesis:\w+", names)
    }
    assert actions == needed
    assert json.loads(policy)["Version"]


def test_looks_at_checkpoints(
    tmp_path: Path, hosts: str, kinesis: ScriptedKinesis, unfinished: Unfinished
) -> None:
    unfinished("orders-checked")
    page("checkpoints", tmp_path, hosts, kinesis).check()
