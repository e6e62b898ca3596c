"""What an operator types beside a query on Spark: what is printed works, and moves what it names and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from stage import AVAILABLE_NOW, Stage, ended
from typer.testing import CliRunner

from kinesis_trident import reliable
from kinesis_trident.bolt.reliable import ReliableSink
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.console.cli import app as console


def typed(stage: Stage, *words: str, code: int = 0) -> str:
    """Type a command, and return what it prints."""
    ran = CliRunner(env={"KINESIS_TRIDENT_ZOOKEEPER": stage.hosts}).invoke(console, words)
    assert ran.exit_code == code, (words, ran.output, ran.exception)
    return ran.output


def found(stage: Stage, code: str) -> dict[str, Any]:
    """Return a finding of the status."""
    findings = json.loads(typed(stage, "status", stage.app, "--json"))["findings"]
    (one,) = [finding for finding in findings if finding["code"] == code]
    return dict(one)


def lines_in(remedy: str) -> list[list[str]]:
    """Return the commands in a remedy, as words."""
    return [
        shlex.split(line.removesuffix(" delivers").removesuffix(" shows all reasons"))[1:]
        for line in re.findall(r"kinesis-trident .*?(?: delivers| lists| shows|$)", remedy)
        if not line.endswith(" lists")
    ]


def test_neighbours_that_fail_together_come_again_by_the_line_that_is_printed(stage: Stage) -> None:
    broken = Path(stage.at("broken"))
    broken.touch()
    flag, taken = str(broken), dict[int, list[str]]()

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if "poison" in text and Path(flag).exists():
            msg = "no customer"
            raise KeyError(msg)
        return text, record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        taken[txid] = [row.text for row in rows.collect()]

    def ran() -> list[str]:
        stream = stage.parsed(parse, retryLimit=0, deadLetter=stage.at("letters"))
        ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
        return [text for txid in sorted(taken) for text in taken[txid]]

    poisoned = [f"poison {n}" for n in range(6)]
    stage.put([*range(7), *poisoned, *range(7, 14)])
    assert ran() == list(map(str, range(14)))
    (node,) = stage.store.shards.dead_letters().values()
    assert [letter.count for letter in node.last] == [6]
    broken.unlink()
    (line,) = lines_in(found(stage, "dead-letters")["remedy"])
    assert "6 records will be delivered again" in typed(stage, *line)
    assert ran()[14:] == poisoned


class Two:
    """Two streams that one query reads together; each has a good record, and a bad one that fails while `broken` is."""

    def __init__(self, stage: Stage, make_stream: Callable[..., str]) -> None:
        self.stage = stage
        other = replace(stage, stream=make_stream(1))
        self.orders, self.payments = sorted((stage, other), key=lambda each: each.stream)
        self.mine = ["--stream", self.orders.stream]
        self.shard = f"{self.orders.stream}/{self.orders.shard()}"
        self.store = SourceStore(stage.zookeeper, Layout("/kinesis-trident", stage.app))
        self.broken = Path(stage.at("broken"))
        self.broken.touch()
        self.taken: list[tuple[str, str]] = []
        for each in (self.orders, self.payments):
            each.put(["good", "bad"])

    def sink(self, **options: object) -> ReliableSink:
        flag = str(self.broken)

        def parse(record):  # type: ignore[no-untyped-def]
            if b"bad" in record.data and Path(flag).exists():
                msg = "no customer"
                raise KeyError(msg)
            return record.stream, record.data.decode()

        def write(rows: DataFrame, _txid: int) -> None:
            self.taken.extend((row.stream, row.text) for row in rows.collect())

        both = f"{self.orders.stream},{self.payments.stream}"
        stream = self.stage.load(streamName=both, deadLetter=self.stage.at("letters"), **options)
        return reliable(stream).map(parse, "stream string, text string").for_each_batch(write)

    def start(self, trigger: dict[str, Any] | None, **options: object) -> StreamingQuery:
        query = self.sink(**options).start(checkpointLocation=self.stage.at("spark"), trigger=trigger)
        self.stage.queries.append(query)
        return query

    def ran(self, **options: object) -> list[tuple[str, str]]:
        """Run the query until nothing is left; return what it took: stream and text."""
        del self.taken[:]
        ended(self.start(AVAILABLE_NOW, **options))
        return sorted(self.taken)

    def waiting(self) -> list[str]:
        """Return the streams with records that wait for a retry."""
        nodes = self.store.shards.inflight()
        return [self.store.layout.key_of(name).stream for name, node in nodes.items() if node.waiting]


@pytest.fixture
def two(make_stage: Callable[..., Stage], make_stream: Callable[..., str]) -> Two:
    return Two(make_stage(), make_stream)


def test_letters_of_one_of_two_streams_come_again(two: Two) -> None:
    stage, orders, payments = two.stage, two.orders.stream, two.payments.stream
    assert two.ran(retryLimit=0) == [(orders, "good"), (payments, "good")]
    two.broken.unlink()
    assert "2 records" in typed(stage, "dead-letters", stage.app, "replay", "--all")
    assert "1 record will not" in typed(stage, "dead-letters", stage.app, "cancel", "--all", *two.mine)
    assert two.ran() == [(payments, "bad")]
    said = typed(stage, "dead-letters", stage.app, "replay", "--all", "--shard", two.shard)
    assert "1 record will" in said
    assert two.ran() == [(orders, "bad")]
    assert "1 record will" in typed(stage, "dead-letters", stage.app, "replay", "--all", "--again", *two.mine)
    assert two.ran() == [(orders, "bad")]


def test_retries_and_checkpoints_of_one_of_two_streams_are_moved(two: Two) -> None:
    stage, orders, payments = two.stage, two.orders.stream, two.payments.stream
    query = two.start(None, retryBackoff="1h..1h x1")
    stage.until(lambda: len(two.waiting()) == 2, "the failures")
    two.broken.unlink()
    del two.taken[:]
    assert "1 record" in typed(stage, "retries", stage.app, "now", "--all", *two.mine)
    stage.until(lambda: two.waiting() == [payments], "the retry")
    assert two.taken == [(orders, "bad")]
    query.stop()
    for words in (
        ["export", stage.at("copy"), *two.mine],
        ["set", "TRIM_HORIZON", "--shard", two.shard, "--yes", "--force"],
        ["import", stage.at("copy"), *two.mine, "--yes", "--force"],
    ):
        typed(stage, "checkpoints", stage.app, *words)
    # It is due beyond the longest delay of this start.
    assert two.ran() == [(payments, "bad")]
    # Which of the shards is not said: the labels in the answer can be typed.
    ran = CliRunner(env={"KINESIS_TRIDENT_ZOOKEEPER": stage.hosts}).invoke(
        console, ["checkpoints", stage.app, "set", "TRIM_HORIZON", "--yes", "--force"]
    )
    assert ran.exit_code == 1
    assert two.shard in str(ran.exception)
    typed(stage, "checkpoints", stage.app, "set", "TRIM_HORIZON", "--shard", two.shard, "--yes", "--force")
    assert two.ran() == [(orders, "bad"), (orders, "good")]
    assert two.waiting() == []
