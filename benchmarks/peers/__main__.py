"""Measure other readers of Kinesis beside ours, on the same pages: records a second, and processor time a record.

    python -m benchmarks.peers [readers] [counts]

Each has an environment of its own in build/peers, which pip fills once (`benchmarks.peers.environments` has the
versions). What cannot be installed or does not read is listed with its reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import word_count
from benchmarks.endpoint import PreparedEndpoint, Records
from benchmarks.peers.environments import PEERS, PeerError, install, measure
from benchmarks.peers.table import Result, bars, losses, rows
from benchmarks.processors import Rate
from benchmarks.report import Section, publish
from benchmarks.source import PAGES, large_batches, ready_rate, spark_rate

COMMAND = "python -m benchmarks.peers"
SHARDS = 2
PEER_PAGES = 12
"""Of a shard; ours reads more of the same, because the start of its query counts."""

SIZES = (200, 1024)
ROUNDS = 2
"""In turns, because what else the machine does changes from minute to minute; the best of each counts."""

COUNTS = 3
"""Rounds of the counts, whose medians count."""

OURS = "kinesis-trident, through Spark to a noop sink"
CEILING = "Spark's ceiling, ready-made Arrow batches"


def readers(spark: SparkSession, folder: Path, hosts: str) -> list[Result]:
    """Measure every reader with records of each size."""
    results = []
    for size in SIZES:
        held, first = (Records(shards=SHARDS, pages=pages, size=size) for pages in (PAGES, PEER_PAGES))
        with PreparedEndpoint(held) as endpoint, PreparedEndpoint(first) as beginning:
            ours = large_batches(endpoint.url, hosts)
            ways: dict[str, Callable[[], Rate]] = {
                OURS: partial(spark_rate, spark, folder, "kinesis-trident", ours, held),
                CEILING: partial(ready_rate, spark, folder, size),
            }
            failures = {}
            for peer in PEERS:
                try:
                    ways[peer.name] = partial(measure, peer, install(peer), beginning.url, first)
                except PeerError as error:
                    failures[peer.name] = str(error)
            rates: dict[str, list[Rate]] = {way: [] for way in ways}
            for _ in range(ROUNDS):
                for way, measurement in ways.items():
                    if way in failures:
                        continue
                    try:
                        rates[way].append(measurement())
                    except PeerError as error:
                        failures[way] = str(error)
                    else:
                        print(f"{way}, {size} B: {rates[way][-1]}", flush=True)
        group = f"{size:,} B"
        results += [
            Result(group, way, best_rate(rates[way]), way == OURS) for way in ways if way not in failures
        ]
        results += [Result(group, way, None, reason=reason) for way, reason in failures.items()]
    return results


def best_rate(rates: Sequence[Rate]) -> Rate:
    """Return the best rate by the clock, and the best of the processors."""
    return Rate(max(one.clock for one in rates), max(one.processors for one in rates))


def counts(spark: SparkSession, folder: Path, hosts: str) -> list[Result]:
    """Measure our count of words beside Spark's own."""
    program = word_count.redis_program()
    size = word_count.SIZES[0]
    word_count.turns(spark, folder, hosts, program, size, 1)
    sides = map(word_count.median, word_count.turns(spark, folder, hosts, program, size, COUNTS))
    names = ("persistent_aggregate(RedisState.opaque, Count)", "Spark's groupBy().count() in RocksDB")
    return [
        Result(
            f"{size.words / 1e6:,.0f} M words a batch",
            name,
            Rate(size.words / side.batch, size.words / side.processor),
            name == names[0],
        )
        for name, side in zip(names, sides, strict=True)
    ]


def main() -> None:
    """Measure, print, and write both sections, or the one that is named."""
    asked = [word for word in sys.argv[1:] if not word.startswith("-")] or list(SECTIONS)
    if unknown := set(asked) - set(SECTIONS):
        msg = f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}"
        raise SystemExit(msg)
    with word_count.prepared() as (spark, folder, hosts):
        for section in asked:
            publish(SECTIONS[section](spark, folder, hosts))


def of_readers(spark: SparkSession, folder: Path, hosts: str) -> Section:
    """Measure the other readers."""
    results = readers(spark, folder, hosts)
    about = "; ".join(f"{peer.name}: {peer.about}" for peer in PEERS if peer.about)
    versions = ", ".join(dict.fromkeys(one for peer in PEERS for one in peer.requirements))
    return Section(
        "peers",
        "Beside other readers",
        f"{COMMAND} readers",
        [
            f"{SHARDS} shards, 10,000 records a page",
            "records/s",
            "to ours",
            "µs of CPU a record",
            "to ours",
        ],
        rows(results),
        note=(
            f"{losses(results)} Everyone reads the same pages of an endpoint that has no limits and runs on the same "
            f"cores, with requests for the largest page: the others {PEER_PAGES} of a shard, ours {PAGES}. The others "
            "hand each record to user code in Python, which counts it and its bytes; of ours and of Spark's ceiling "
            "the noop sink takes the rows. The clock of the others runs from their first record to the last, their "
            "processor time from the first request. Ours is that of a whole query in a warm JVM, with its start, "
            "planning, pinning in ZooKeeper and Spark's logs, without ZooKeeper's own processor time. The best of "
            f"{ROUNDS} rounds in turns. {about}. "
            f"Versions: {versions}."
        ),
        plots=[bars("peers", "Records a second and CPU a record of each reader", "record", results)],
    )


def of_counts(spark: SparkSession, folder: Path, hosts: str) -> Section:
    """Measure the counts of words."""
    results = counts(spark, folder, hosts)
    return Section(
        "peers-count",
        "Beside Spark's own count",
        f"{COMMAND} counts",
        ["the same source for both", "words/s", "to ours", "µs of CPU a word", "to ours"],
        rows(results),
        note=f"{losses(results)} Medians of {COUNTS} rounds in turns; the section on the word count has more.",
    )


SECTIONS: dict[str, Callable[[SparkSession, Path, str], Section]] = {
    "readers": of_readers,
    "counts": of_counts,
}


if __name__ == "__main__":
    main()
