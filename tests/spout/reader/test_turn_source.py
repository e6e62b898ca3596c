"""Records to be read again, from the spool and from the stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import pytest
from found_records import payloads_by_run, records
from hypothesis import HealthCheck, example, given, settings, strategies as st

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.spout.failed_records.retry_ranges import Picker
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.reader.fetch import DueTurn
from kinesis_trident.spout.reader.turn_source import take_up
from kinesis_trident.tracker.records import RecordPosition, Run

SHARD = "shardId-000000000000"
LAYOUT = Layout("/root", "app", "orders", 1)
EVERY = range(100, 130)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=10),
    spooled=st.sets(st.sampled_from(EVERY)),
    left=st.sets(st.sampled_from(EVERY)),
    until=st.sampled_from(EVERY),
)
@example(sizes=[10], spooled=set(range(100, 105)), left=set(EVERY), until=102)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_run_has_its_records_from_where_more_of_them_are(
    tmp_path: Path, sizes: list[int], spooled: set[int], left: set[int], until: int
) -> None:
    spool = RetrySpool(mkdtemp(dir=tmp_path), LAYOUT)
    spool.put(SHARD, 1, [records([RecordPosition(number) for number in sorted(spooled)])])
    parts, start = [], EVERY.start
    for size in sizes:
        # One record between two runs that did not fail.
        parts.append([number for number in range(start, start + size) if number in EVERY])
        start += size + 1
    parts = [part for part in parts if part]
    runs = [Run(str(part[0]), str(part[-1]), len(part)) for part in parts]
    asked: list[Run] = []

    def fetch(rest: Sequence[Run]) -> DueTurn:
        asked.extend(rest)
        picker = Picker(rest)
        picker.offer(records([RecordPosition(number) for number in sorted(left) if number <= until]))
        picker.note_passed(RecordPosition(until))
        return DueTurn(picker.records, picker.missing, picker.through)

    found = take_up(runs, fetch, spool, SHARD)

    whole = [set(part) <= spooled for part in parts]
    assert asked == [run for run, is_whole in zip(runs, whole, strict=True) if not is_whole]
    for index, part in enumerate(parts):
        kept, there = spooled.intersection(part), {n for n in left.intersection(part) if n <= until}
        reached = part[-1] <= until or bool(there)
        is_missing = part[-1] <= until and len(there) < len(part)
        best = kept if whole[index] or (is_missing and len(kept) > len(there)) else there
        if whole[index] or reached:
            assert [
                int(n) for batch in found.records.of_run(index) for n in batch["data"].to_pylist()
            ] == sorted(best)
            assert found.records.counts[index] == len(best)
        else:
            assert found.records.counts[index] == -1
        assert bool(found.fetched[index]) == (reached and not whole[index] and best is there)
        assert (index in found.missing) == (not whole[index] and is_missing)


def test_no_folder_is_listed_where_nothing_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for at each turn of each shard, and may be on a network."""
    spool = RetrySpool(str(tmp_path), LAYOUT)
    listed: list[str] = []
    monkeypatch.setattr(
        RetrySpool, "_list_files", lambda _, home, folder, **__: listed.append(folder) or iter(())
    )

    def fetch(rest: Sequence[Run]) -> DueTurn:
        picker = Picker(rest)
        return DueTurn(picker.records, picker.missing, picker.through)

    assert payloads_by_run(take_up([], fetch, spool, SHARD).records) == []
    assert listed == []
    take_up([Run("7", "7")], fetch, spool, SHARD)
    # The second has the names of releases before.
    assert [folder.rpartition("/")[2] for folder in listed] == [SHARD, SHARD]
