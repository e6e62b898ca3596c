"""Batch functions that use their rows in part, or not at all: what did not run is not acked, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from stage import AVAILABLE_NOW, Stage, Taken, ended
from thorough import cases

from kinesis_trident import Outcomes, foreach_batch, reliable

Action = Callable[[DataFrame], object]


def empty_join(rows: DataFrame) -> object:
    nothing = rows.sparkSession.sql("select 'x' as text where 1=0")
    return rows.join(nothing, "text").collect()


PARTIAL: dict[str, Action] = {
    "no action": lambda rows: None,
    "filter 1=0": lambda rows: rows.filter("1=0").collect(),
    "empty join": empty_join,
    "limit": lambda rows: rows.limit(1).collect(),
    "first": lambda rows: rows.first(),
    "isEmpty": lambda rows: rows.isEmpty(),
}
"""The first three run no task of the source, `limit` and `first` its first one, `isEmpty` all there are."""


def text_of(rows: DataFrame) -> DataFrame:
    return rows.select(col("data").cast("string").alias("text"), "attempt", "messageId")


def test_reliable_judges_every_record_whatever_the_function_takes(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(2)
    judged = stage.folder / "judged"
    judged.mkdir()
    taken = Taken()
    actions: dict[str, Callable[[DataFrame, int], object]] = {
        **{name: lambda rows, _, action=action: action(rows) for name, action in PARTIAL.items()},
        "all": taken,
    }
    wanted = ""
    asked: dict[int, str] = {}

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        (judged / f"{record.txid} {text} {record.attempt}").touch()
        if text.startswith("flaky"):
            raise ValueError(text)
        return text, record.attempt

    def write(rows: DataFrame, txid: int) -> None:
        asked[txid] = wanted
        actions[wanted](rows, txid)

    put: list[str] = []

    def all_settled() -> bool:
        return len(list(judged.iterdir())) >= len(put) and stage.settled == max(asked)

    query = None
    for wanted in actions:
        # Where a batch ends among them is left to chance.
        texts = [f"{kind} {wanted} {n}" for kind in ("good", "flaky") for n in range(6)]
        put += texts
        stage.put(texts)
        stream = stage.parsed(parse, retryLimit=1000, retryBackoff="1000h..1000h x1")
        query = query or stage.start(stream, write)
        stage.until(all_settled, f"the records of {wanted}")
    assert sorted(taken.texts) == [f"good all {n}" for n in range(6)]
    by_text = {path.name.partition(" ")[2]: int(path.name.partition(" ")[0]) for path in judged.iterdir()}
    assert sorted(by_text) == sorted(f"{text} 1" for text in put)
    assert len(list(judged.iterdir())) == len(put)
    # What was judged good is done, taken or not; what failed waits, also that of a batch nobody looked at.
    waiting = [run for node in stage.store.shards.inflight().values() for run in node.waiting]
    assert sum(run.count for run in waiting) == len([text for text in put if text.startswith("flaky")])
    failed_in = {
        name: sum(1 for text, txid in by_text.items() if "flaky" in text and asked[txid] == name)
        for name in PARTIAL
    }
    assert all(failed_in.values()), failed_in


@pytest.mark.long
def test_reliable_without_a_function_reads_every_record(make_stage: Callable[..., Stage]) -> None:
    """The test above says the same of all records of a batch."""
    stage = make_stage(2)
    count = len(PARTIAL) + 1
    put = [stage.put((f"{shard}.{n}" for n in range(2 * count)), shard) for shard in range(2)]
    actions = iter(PARTIAL.values())
    taken: list[tuple[str, int]] = []

    def write(rows: DataFrame, _txid: int) -> None:
        rows = text_of(rows)
        action = next(actions, None)
        if action is not None:
            action(rows)
        else:
            taken.extend((row.text, row.attempt) for row in rows.collect())

    # Two records of each shard in a batch, the last of which takes all of its own.
    stream = reliable(stage.load(maxRecordsPerTrigger=4))
    ended(stage.start(stream, write, trigger=AVAILABLE_NOW))
    last = range(2 * count - 2, 2 * count)
    assert sorted(taken) == sorted((f"{shard}.{n}", 1) for shard in range(2) for n in last)
    assert stage.settled >= count
    done = {shard: node.checkpoint for shard, node in stage.store.shards.checkpoints().items()}
    assert done == {stage.shard(n): put[n][-1].rpartition(":")[2] for n in range(2)}


@pytest.mark.parametrize("reporting", cases(True, long=(False,)))
def test_plain_functions_ack_only_what_ran(make_stage: Callable[..., Stage], reporting: bool) -> None:
    stage = make_stage(4)
    put = [id_ for shard in range(4) for id_ in stage.put((f"{shard}.{n}" for n in range(5)), shard)]
    actions = iter(PARTIAL.items())
    pinned: dict[str, set[str]] = {}
    taken: dict[int, list[str]] = {}

    def part(rows: DataFrame, txid: int) -> None:
        name, action = next(actions, (None, None))
        rows = text_of(rows)
        if action is None:
            taken[txid] = [row.messageId for row in rows.collect()]
            return
        action(rows)
        batch = stage.store.batches.newest()
        assert batch is not None
        pins = stage.store.batches.get_pins(batch.plan.txid, batch.plan.shards)
        # What a turn holds is known before its first row is seen.
        pinned[name] = {
            id_
            for id_ in put
            for shard, pin in pins.items()
            if f"/{shard}:" in id_ and pin.last is not None and id_ not in set().union(*pinned.values())
        }

    def with_outcomes(rows: DataFrame, txid: int, outcomes: Outcomes) -> None:
        part(rows, txid)

    def spark_alone(rows: DataFrame, batch: int) -> None:
        part(rows, batch)

    stream = stage.load()
    write = foreach_batch(stream, with_outcomes) if reporting else spark_alone
    ended(stage.start_plain(stream, write, availableNow=True))
    put += stage.put(f"later {n}" for n in range(8))
    ended(stage.start_plain(stream, write, availableNow=True))

    assert list(pinned) == list(PARTIAL)
    assert not pinned["no action"]
    assert not pinned["filter 1=0"]
    assert not pinned["empty join"]
    assert pinned["limit"]
    assert pinned["first"]
    seen = [id_ for ids in pinned.values() for id_ in ids] + [id_ for ids in taken.values() for id_ in ids]
    assert sorted(seen) == sorted(put)
    assert set().union(*taken.values()) >= set(put[-8:])


def test_what_a_sink_filters_away_is_done(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(2)
    put = stage.put(range(20))
    ended(stage.start_plain(text_of(stage.load()).filter("text like '1%'"), availableNow=True))
    assert stage.output() == sorted(str(n) for n in range(20) if str(n).startswith("1"))
    ended(stage.start_plain(text_of(stage.load()), availableNow=True))
    assert len(stage.output()) == 11
    last = {id_.partition(":")[0].partition("/")[2]: id_.partition(":")[2] for id_ in put}
    assert {shard: node.checkpoint for shard, node in stage.store.shards.checkpoints().items()} == last
