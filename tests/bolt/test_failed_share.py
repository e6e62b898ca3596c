"""The share of new records that fail: retries and held records are no part of it, and few records show nothing."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, strategies as st

from kinesis_trident.bolt.failed_share import LEAST, FailedShare
from kinesis_trident.checkpoint.model.nodes import NotDone, Plan
from kinesis_trident.tracker.failure import Failure, Kind, text_of
from kinesis_trident.tracker.records import Run

SHARD = "shardId-000000000000"
HELD = text_of(Failure(Kind.HELD, where=("join",)))


def run(last: int) -> Run:
    return Run(None, str(last), 1, 1, 0)


def share(
    fresh: int, failed: list[tuple[int, str]], retried: list[int] | None = None, first: int = 100
) -> FailedShare:
    """Return that of a batch of new records from position `first` on; `failed`: positions, with texts."""
    plan = Plan(
        txid=1,
        plan="p",
        streams={"orders": 1},
        positions={SHARD: "TRIM_HORIZON"},
        read=(SHARD,),
        retries={SHARD: tuple(map(run, retried or []))} if retried else {},
    )
    pieces = tuple(NotDone(str(at), str(at), 1, text) for at, text in failed)
    return FailedShare.of(plan, fresh, {SHARD: pieces})


texts = st.sampled_from(["ValueError: 1", "ValueError: 2", "KeyError: 'a' (bolt parse)", HELD])


@given(
    fresh=st.integers(0, 30),
    bad=st.dictionaries(st.integers(0, 29), texts, max_size=30),
    again=st.dictionaries(st.integers(0, 20), texts, max_size=20),
    limit=st.sampled_from([None, 0.1, 0.5, 0.9]),
)
def test_only_new_records_that_failed_count(
    fresh: int, bad: dict[int, str], again: dict[int, str], limit: float | None
) -> None:
    new = {at: text for at, text in bad.items() if at < fresh}
    found = share(
        fresh, sorted({**again, **{100 + at: text for at, text in new.items()}}.items()), sorted(again)
    )
    failed = [text.partition(":")[0] for text in new.values() if text != HELD]
    assert (found.records, found.failed) == (fresh, len(failed))
    assert found.same == max(map(failed.count, failed), default=0)
    assert found.reason.partition(":")[0] in ({*failed} or {""})
    assert found.exceeds(limit) is (fresh >= LEAST and limit is not None and len(failed) > limit * fresh)
    assert found.is_alike is (fresh >= LEAST and found.same > fresh / 2)


@given(parts=st.lists(st.lists(texts, max_size=12), min_size=1, max_size=5))
def test_small_batches_count_together(parts: list[list[str]]) -> None:
    together = FailedShare()
    for part in parts:
        together = together.add(share(len(part), [(100 + at, text) for at, text in enumerate(part)]))
    whole = share(sum(map(len, parts)), [(100 + at, text) for at, text in enumerate(chain(*parts))])
    assert (together.records, together.failed, together.same) == (whole.records, whole.failed, whole.same)


def test_a_poisoned_record_of_a_quiet_stream_shows_nothing() -> None:
    assert not share(1, [(100, "ValueError: 1")]).exceeds(0.5)
    assert not share(0, [(5, "ValueError: 1")], [5]).is_alike
