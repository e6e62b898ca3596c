"""A clickstream: the top pages, the visitors, and their sessions, counted exactly once while the stream reshards.

    python examples/clickstream.py

A click is JSON, with a time in seconds since 1970: `{"visitor": "ann", "page": "/home", "at": 1767258000}`. All numbers
are kept in states in a folder, and each run goes on from them. On its own servers the example writes some clicks,
splits the shards, writes more, and counts them all; on yours it counts what is there, and ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from playground import AVAILABLE_NOW, Place, arguments, place_of

from kinesis_trident.trident import (
    CombinerAggregator,
    Count,
    FileState,
    KinesisSpout,
    Sum,
    TridentTopology,
    TridentTuple,
)

GAP = 30 * 60
"""Seconds without a click that end a session."""

DAY = 24 * 3600

NINE = 1767258000
"""2026-01-01, nine o'clock; the times of the clicks below are minutes after it."""

BEFORE_THE_RESHARD = (
    ("ann", "/home", 0),
    ("bob", "/home", 2),
    ("ann", "/shoes", 5),
    ("cid", "/home", 9),
    ("ann", "/cart", 20),
    ("bob", "/shoes", 21),
)
AFTER_THE_RESHARD = (("ann", "/home", 45), ("bob", "/home", 90), ("dan", "/shoes", 91))


class Sessions(CombinerAggregator):
    """The sessions of a visitor, each `[first click, last click, clicks]`: times that lie close together are one."""

    def init(self, tup: TridentTuple) -> list[list[int]]:
        """Return the session that one click is."""
        return [[tup["at"], tup["at"], 1]]

    def combine(self, before: list[list[int]], after: list[list[int]]) -> list[list[int]]:
        """Join the sessions between which there is no gap, in whichever order they come; forget those of yesterday."""
        joined: list[list[int]] = []
        for first, last, clicks in sorted(before + after):
            if joined and first - joined[-1][1] <= GAP:
                joined[-1] = [joined[-1][0], max(last, joined[-1][1]), clicks + joined[-1][2]]
            else:
                joined.append([first, last, clicks])
        return [one for one in joined if one[1] > joined[-1][1] - DAY]

    def zero(self) -> list[list[int]]:
        """Return no sessions."""
        return []


class Top(CombinerAggregator):
    """The names with the greatest numbers; right as long as a name's number only rises."""

    def __init__(self, size: int) -> None:
        self.size = size

    def init(self, tup: TridentTuple) -> dict[str, int]:
        """Return the list that one name is."""
        return {tup[0]: tup[1]}

    def combine(self, before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
        """Keep the greatest of both; names decide between equal ones, so that a replay gives the same."""
        best = {name: max(before.get(name, 0), after.get(name, 0)) for name in before | after}
        return dict(sorted(best.items(), key=lambda one: (-one[1], one[0]))[: self.size])

    def zero(self) -> dict[str, int]:
        """Return an empty list."""
        return {}


class IsFirst(CombinerAggregator):
    """1 in the batch that has a key first, 0 later: their sum is the number of keys."""

    def init(self, tup: TridentTuple) -> int:
        """Return 1 for a key that is not stored."""
        return 1

    def combine(self, before: int, after: int) -> int:
        """Return 0 for one that is."""
        return 0

    def zero(self) -> int:
        """Return the type."""
        return 0


def parse(tup: TridentTuple) -> list[Any]:
    """Parse a click; one that cannot be parsed fails alone, and comes back in a later batch."""
    click = json.loads(tup["data"])
    return [click["visitor"], click["page"], int(click["at"])]


def longest(tup: TridentTuple) -> list[Any]:
    """Return a visitor with the seconds of the longest session."""
    return [tup["visitor"], max(last - first for first, last, _ in tup["sessions"])]


def states(place: Place) -> Callable[[str], FileState]:
    """Return a function that makes the state of a name."""
    return lambda name: FileState.opaque(place.at(f"states/{name}"))


def count(place: Place) -> None:
    """Count what is in the stream and was not counted so far."""
    kept = states(place)
    topology = TridentTopology(place.spark)
    clicks = topology.new_stream("clicks", KinesisSpout(**place.options)).map(
        parse, "visitor string, page string, at bigint"
    )
    views = clicks.group_by("page").persistent_aggregate(kept("views"), Count(), "views")
    views.new_values_stream().persistent_aggregate(
        kept("top"), Top(3), "top map<string,bigint>", ["page", "views"]
    )

    # One tuple for each visitor of the batch, so that `combine` is only called with a stored value.
    seen = clicks.group_by("visitor").aggregate(Count(), "n")
    first = seen.group_by("visitor").persistent_aggregate(kept("seen"), IsFirst(), "first")
    first.new_values_stream().persistent_aggregate(kept("visitors"), Sum(), "visitors", ["first"])

    sessions = clicks.group_by("visitor").persistent_aggregate(
        kept("sessions"), Sessions(), "sessions array<array<bigint>>", ["at"]
    )
    sessions.new_values_stream().map(longest, "visitor string, seconds bigint").persistent_aggregate(
        kept("longest"), Top(3), "longest map<string,bigint>", ["visitor", "seconds"]
    )
    topology.start(
        checkpointLocation=place.at("checkpoint"), trigger=AVAILABLE_NOW, strict=True
    ).await_termination()


def numbers(place: Place) -> tuple[dict[str, int], int, dict[str, int]]:
    """Return the top pages with their views, the number of visitors, and the longest sessions in seconds."""
    kept = states(place)
    top, visitors, best = (kept(name).make_state({}, 0, 1).get() for name in ("top", "visitors", "longest"))
    return top or {}, visitors or 0, best or {}


def count_through_a_reshard(place: Place) -> None:
    """Write clicks, split the shards in the middle, and count."""
    assert place.kinesis is not None

    def click(*clicks: tuple[str, str, int]) -> None:
        place.put(
            (who, json.dumps({"visitor": who, "page": page, "at": NINE + at * 60}))
            for who, page, at in clicks
        )

    stream = place.options["streamName"]
    # These clicks are in shards that are closed when they are read; they are counted before those of their children.
    click(*BEFORE_THE_RESHARD)
    for shard in place.kinesis.shards(stream):
        place.kinesis.split(stream, shard)
    click(*AFTER_THE_RESHARD)
    count(place)


def main() -> None:
    """Count the clicks, and print the numbers."""
    asked = arguments(__doc__, "clicks", "clickstream").parse_args()
    with place_of(asked) as place:
        if place.kinesis:
            count_through_a_reshard(place)
            print(f"shards: {', '.join(place.kinesis.shards(asked.stream))}")
        else:
            count(place)
        top, visitors, best = numbers(place)
        print("top pages:", ", ".join(f"{page} {views}" for page, views in top.items()))
        print("visitors:", visitors)
        print("longest sessions:", ", ".join(f"{who} {seconds // 60} min" for who, seconds in best.items()))


if __name__ == "__main__":
    main()
