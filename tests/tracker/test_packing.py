"""Runs packed as columns come back as they were, and what did not change is packed the same."""

from __future__ import annotations

import base64
import random
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.packing import PackedRuns, pack_runs, pack_same_runs, packed_size, unpack_runs
from kinesis_trident.tracker.records import Failure, RecordPosition, Run

POSITIONS = st.builds(
    lambda sequence, sub: str(RecordPosition(sequence, sub)),
    st.integers(0, 10**129 - 1),
    st.integers(-1, 2**31),
)
RUNS = st.builds(
    Run,
    first=st.just("") | POSITIONS,
    last=POSITIONS,
    count=st.integers(1, 2**40),
    prev=st.none() | POSITIONS,
    attempt=st.integers(0, 1000),
    due=st.integers(0, 2**53),
    failures=st.lists(
        st.builds(Failure, time=st.integers(0, 2**53), reason=st.text(max_size=20)), max_size=3
    ).map(tuple),
)


@given(st.lists(RUNS, max_size=20).map(tuple))
def test_runs_come_back_as_they_were(runs: tuple[Run, ...]) -> None:
    assert unpack_runs(pack_runs(runs)) == runs


def scattered(count: int, rng: random.Random, reasons: int = 64) -> list[Run]:
    """Every second record of a turn, numbered as Kinesis does."""
    sequence = 49590338271490256608559692538361571095921575989136588898
    positions = []
    for _ in range(2 * count):
        sequence += rng.randrange(10**27)
        positions.append(str(sequence))
    return [
        Run(
            positions[at],
            positions[at],
            1,
            positions[at - 1] if at else None,
            1,
            1_795_259_256_000,
            (Failure(1_795_259_250_043, f"ValueError: {at % reasons}".ljust(200, ".")),),
        )
        for at in range(0, 2 * count, 2)
    ]


def test_scattered_failures_take_few_bytes_however_the_positions_lie() -> None:
    runs = scattered(5_000, random.Random(1))
    # Two positions a run, whose 27 digits at random are 11.2 bytes, 15 in base64.
    assert packed_size(pack_runs(runs)) < 5_000 * 34
    assert len(msgspec.json.encode(runs)) > 10 * packed_size(pack_runs(runs))
    assert unpack_runs(pack_runs(runs)) == tuple(runs)


def test_what_did_not_change_is_packed_the_same() -> None:
    rng = random.Random(2)
    runs = scattered(20_000, rng)
    before = pack_runs(runs)
    assert len(before) >= 10
    # Some are done, some have failed again, others have come: one chunk each changes, at most.
    runs[3_000] = msgspec.structs.replace(runs[3_000], attempt=2)
    del runs[9_000]
    runs += [
        msgspec.structs.replace(run, first=f"9{run.first}", last=f"9{run.last}") for run in scattered(5, rng)
    ]
    after = pack_runs(runs)
    assert unpack_runs(after) == tuple(runs)
    assert len(set(after) - set(before)) <= 3


def test_lists_that_come_again_soon_are_packed_once_as_long_as_they_are_few_together() -> None:
    lists = [tuple(scattered(3, random.Random(seed))) for seed in range(200)]
    packed = [pack_same_runs(runs) for runs in lists]
    assert packed == [pack_runs(runs) for runs in lists]
    assert all(pack_same_runs(runs) is known for runs, known in zip(lists, packed, strict=True))
    many = tuple(scattered(40_000, random.Random(4)))
    assert pack_same_runs(many) == pack_runs(many)
    assert pack_same_runs(many) is not pack_same_runs(many)
    assert pack_same_runs(lists[0]) == packed[0]
    assert pack_same_runs(lists[0]) is not packed[0]


GOOD = pack_runs(scattered(3, random.Random(3)))[0]


@pytest.mark.parametrize(
    "chunk",
    [
        PackedRuns(3, GOOD.count, ""),
        PackedRuns(3, GOOD.count, "no base64"),
        PackedRuns(3, GOOD.count, GOOD.packed[:-4]),
        PackedRuns(2, GOOD.count, GOOD.packed),
        PackedRuns(4, GOOD.count, GOOD.packed),
        PackedRuns(-1, GOOD.count, GOOD.packed),
        PackedRuns(3, GOOD.count + 1, GOOD.packed),
        # A position that Kinesis does not give.
        PackedRuns(1, 1, pack_runs([Run(str(10**129), str(10**129))])[0].packed),
    ],
)
def test_what_cannot_be_read_is_an_error(chunk: PackedRuns) -> None:
    with pytest.raises(OrderError, match="cannot be read"):
        unpack_runs([chunk])


COLUMNS = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(GOOD.packed)))
WIDE = st.integers(-(2**63), 2**64 - 1)
FATES = st.lists(
    st.tuples(WIDE, WIDE, st.lists(st.tuples(WIDE, st.integers(-3, 3)), min_size=1, max_size=2)),
    min_size=3,
    max_size=3,
)
DAMAGE = [
    st.lists(st.text(max_size=3), max_size=3),
    FATES,
    *(st.binary(min_size=len(good), max_size=len(good)) for good in COLUMNS[2:6]),
    st.integers(-3, 2**40),
    st.binary(max_size=80),
]


@pytest.mark.parametrize("column", range(len(COLUMNS)))
@given(data=st.data(), count=st.just(GOOD.n) | st.integers(-3, 5) | st.just(10**30))
def test_damaged_columns_are_an_error_or_runs_that_a_node_may_hold(
    column: int, data: st.DataObject, count: int
) -> None:
    content = data.draw(DAMAGE[column] | st.none() | st.just([]) | st.binary(max_size=80))
    columns = [content if i == column else good for i, good in enumerate(COLUMNS)]
    squeezed = zlib.compress(msgspec.msgpack.encode(columns))
    try:
        runs = unpack_runs([PackedRuns(count, GOOD.count, base64.b64encode(squeezed).decode())])
    except OrderError:
        return
    for run in runs:
        assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


@given(at=st.integers(0, 2000), bits=st.integers(1, 255))
def test_a_changed_byte_is_an_error(at: int, bits: int) -> None:
    squeezed = bytearray(base64.b64decode(GOOD.packed))
    squeezed[at % len(squeezed)] ^= bits
    damaged = PackedRuns(GOOD.n, GOOD.count, base64.b64encode(squeezed).decode())
    try:
        runs = unpack_runs([damaged])
    except OrderError:
        return
    # zlib ignores a few bits of its header.
    assert runs == unpack_runs([GOOD])
