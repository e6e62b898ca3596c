"""Packed runs come back as they were, and what cannot be read is an error, within bounds of memory."""

from __future__ import annotations

import base64
import random
import re
import tracemalloc
import zlib

import msgspec
import pytest
from bomb import half_a_gibibyte
from hypothesis import HealthCheck, given, settings, strategies as st

from kinesis_trident.tracker import packing
from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.packing import MOST_RUNS, MOST_TEXT, pack, pack_in_pieces, unpack, unpack_pieces
from kinesis_trident.tracker.records import NotDone, Noted, RecordPosition, Run

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
        st.builds(Noted, time=st.integers(0, 2**53), text=st.text(max_size=20)), max_size=3
    ).map(tuple),
)
PIECES = st.builds(
    NotDone,
    first=st.just("") | POSITIONS,
    last=POSITIONS,
    count=st.integers(1, 2**40),
    text=st.sampled_from(["", "ValueError", "é\U0001f600"]),
    prev=st.none() | POSITIONS,
)


@given(st.lists(RUNS, max_size=20).map(tuple))
def test_runs_come_back_as_they_were(runs: tuple[Run, ...]) -> None:
    assert unpack(pack(runs)) == runs
    assert unpack(pack({"a": runs, "b": runs[:1]})) == {"a": runs, "b": runs[:1]}


def test_the_longest_positions_come_back_as_they_were() -> None:
    longest = "9" * 129 + ":2147483648"
    for runs in ((Run(longest, longest),), (Run("", longest, 2, longest[:-1] + "6"),)):
        assert unpack(pack(runs)) == runs


@given(st.lists(PIECES, min_size=1, max_size=20).map(tuple))
def test_pieces_come_back_as_they_were(pieces: tuple[NotDone, ...]) -> None:
    assert unpack_pieces(pack({"a": pieces, "b": ()})) == {"a": pieces, "b": ()}


def scattered(count: int, rng: random.Random, reasons: int = 64) -> tuple[Run, ...]:
    """Every second record of a turn, numbered as Kinesis does; each has failed three times."""
    sequence = 49590338271490256608559692538361571095921575989136588898
    positions = []
    for _ in range(2 * count):
        sequence += rng.randrange(10**27)
        positions.append(str(sequence))
    return tuple(
        Run(
            positions[at],
            positions[at],
            1,
            positions[at - 1] if at else None,
            3,
            1_795_259_256_000,
            tuple(
                Noted(1_795_259_250_043 + each, f"ValueError: {at % reasons}".ljust(200, "."))
                for each in range(3)
            ),
        )
        for at in range(0, 2 * count, 2)
    )


def test_records_that_fail_together_share_their_failures_in_store_and_in_memory() -> None:
    runs = scattered(5_000, random.Random(1))
    text = pack(runs)
    # Two positions a run, whose 27 digits at random are 11.2 bytes.
    assert len(text) < 5_000 * 64
    assert len(msgspec.json.encode(runs)) > 12 * len(text)
    read = unpack(text)
    assert read == runs
    assert isinstance(read, tuple)
    assert len({id(run.failures) for run in read}) == 32


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RUNS, max_size=40).map(tuple), st.integers(1, 50))
def test_runs_in_pieces_come_back_as_they_were(
    monkeypatch: pytest.MonkeyPatch, runs: tuple[Run, ...], most: int
) -> None:
    monkeypatch.setattr(packing, "MOST_RUNS", most)
    text = pack_in_pieces(runs)
    assert unpack(text) == runs
    assert (text == pack(runs)) is (len(runs) <= most)


def test_runs_that_fit_in_one_piece_are_as_they_were() -> None:
    for runs in ((), scattered(1, random.Random(1)), scattered(MOST_RUNS // 2, random.Random(1))):
        assert pack_in_pieces(runs) == pack(runs)


def test_pieces_are_no_larger_than_is_said_and_share_their_failures_in_memory() -> None:
    large = tuple(
        Run("", str(10**55 + n), failures=(Noted(n, random.Random(n).randbytes(100).hex()),) * 16)
        for n in range(300)
    )
    for runs in (scattered(5_000, random.Random(1)), large):
        pieces = pack_in_pieces(runs).split(".")
        assert pieces.pop() == ""
        assert len(pieces) <= 3 * max(len(runs) / MOST_RUNS, len(pack(runs)) / MOST_TEXT)
        for piece in pieces:
            found = unpack(piece)
            assert len(found) <= MOST_RUNS
            assert len(piece) <= MOST_TEXT or len(found) == 1
    read = unpack(pack_in_pieces(scattered(5_000, random.Random(1))))
    assert isinstance(read, tuple)
    assert len({id(run.failures) for run in read}) == 32


KEPT = st.dictionaries(st.integers(1, 300), st.tuples(st.booleans(), st.integers(1, 3)), max_size=120)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KEPT, KEPT, st.integers(2, 9))
def test_a_changed_run_changes_no_more_than_its_neighbours_in_two_pieces(
    monkeypatch: pytest.MonkeyPatch,
    before: dict[int, tuple[bool, int]],
    changes: dict[int, tuple[bool, int]],
    most: int,
) -> None:
    """A run comes, goes, or fails again. What is written anew is bounded by how many do."""
    monkeypatch.setattr(packing, "MOST_RUNS", most)
    after = dict(before)
    for position, (stays, attempt) in changes.items():
        after.pop(position, None)
        if stays:
            after[position] = (stays, attempt)

    def pieces(of: dict[int, tuple[bool, int]]) -> set[tuple[Run, ...]]:
        runs = [Run("", str(at), attempt=attempt) for at, (_, attempt) in sorted(of.items())]
        text = pack_in_pieces(runs)
        found = [unpack(piece) for piece in text.split(".") if piece] if "." in text else [unpack(text)]
        assert [run for some in found for run in some] == runs
        return {some for some in found if isinstance(some, tuple)}

    touched = sum(before.get(at) != after.get(at) for at in {*before, *after})
    written = sum(map(len, pieces(after) - pieces(before)))
    assert written <= touched * (2 * most + 1)


GOOD = pack(scattered(3, random.Random(3)))
PLAIN = zlib.decompress(base64.b64decode(GOOD))


def packed(plain: bytes) -> str:
    return base64.b64encode(zlib.compress(plain)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no base64",
        "é",
        GOOD[:-4],
        packed(b"[]"),
        packed(PLAIN[:-1]),
        packed(b'{"failures":[]}'),
        packed(PLAIN.replace(b"[0,1,2]]", b"[0,1,-1]]")),
        packed(PLAIN.replace(b"[0,1,2]]", b"[0,1,3]]")),
        packed(PLAIN.replace(b"[0,1,2]]", b"[0,1]]")),
        packed(PLAIN.replace(b"[1,1,1]", b"[1,1,1,1]")),
        packed(PLAIN.replace(b'"= = ="', b'"= ="')),
        packed(PLAIN.replace(b'"= = ="', b'"= = = ="')),
        packed(PLAIN.replace(b'"= = ="', b'"= = x"')),
        packed(PLAIN.replace(b'"- ', b'"')),
        packed(PLAIN.replace(b'"- ', b'"x ')),
        packed(PLAIN.replace(b'["4959', b'["x959')),
        packed(PLAIN.replace(b'["4959', '["\u0664959'.encode())),
        packed(PLAIN.replace(b'["4959', b'["' + b"4" * 120)),
        packed(re.sub(rb'"[0-9 ]+",\[1', b'"",[1', PLAIN)),
        packed(b"[" * 100_000),
        GOOD + "." + GOOD,
        GOOD + "..",
        "." + GOOD,
        ".",
        pack({"a": ()}) + "." + GOOD + ".",
    ],
)
def test_what_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(OrderError, match="cannot be read"):
        unpack(text)
    with pytest.raises(OrderError, match="cannot be read"):
        unpack_pieces(text)


@pytest.mark.parametrize(
    ("first", "last", "prev"), [("x", "8", "7"), ("8", "x", "7"), ("8", "8", "x"), ("8", "8", "")]
)
def test_a_position_that_is_none_is_an_error(first: str, last: str, prev: str) -> None:
    columns = ["", first, last, [1], prev]
    with pytest.raises(OrderError, match="cannot be read"):
        unpack(packed(msgspec.json.encode({"failures": [[]], "columns": [*columns, [1], [0], [0]]})))
    with pytest.raises(OrderError, match="cannot be read"):
        unpack_pieces(packed(msgspec.json.encode({"reasons": [""], "columns": {"a": [*columns, [0]]}})))
    good = Run("", "8:1", prev="7")
    assert unpack(pack([good])) == (good,)


@given(at=st.integers(0, 2000), bits=st.integers(1, 255))
def test_a_changed_byte_is_an_error(at: int, bits: int) -> None:
    squeezed = bytearray(base64.b64decode(GOOD))
    squeezed[at % len(squeezed)] ^= bits
    try:
        runs = unpack(base64.b64encode(squeezed).decode())
    except OrderError:
        return
    # zlib ignores a few bits of its header.
    assert runs == unpack(GOOD)


def test_long_reasons_that_repeat_come_back() -> None:
    failures = [Noted(1_700_000_000_000, "\0" * 256) for _ in range(16)]
    runs = tuple(
        Run("", str(10**55 + n), 1, str(10**55 + n - 1), 16, 0, (Noted(n, "\0" * 256), *failures[1:]))
        for n in range(300)
    )
    assert unpack(pack(runs)) == runs


def test_a_text_that_unpacks_to_very_much_is_not_unpacked() -> None:
    text = half_a_gibibyte()
    tracemalloc.start()
    try:
        with pytest.raises(OrderError, match="more than"):
            unpack(text)
        assert tracemalloc.get_traced_memory()[1] < 650 * len(text)
    finally:
        tracemalloc.stop()
