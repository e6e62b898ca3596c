from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.common.times import iso_time
from kinesis_trident.console.target import time_of_option
from kinesis_trident.console.text import duration, epoch_ms, short


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (4_299, "4.2 s"),
        (59_940, "59.9 s"),
        (59_999, "59.9 s"),
        (60_000, "1m 00s"),
        (185_000, "3m 05s"),
        (3_600_000, "1h 00m"),
        (7_620_000, "2h 07m"),
        (86_400_000, "1d 0h"),
        (100_800_000, "1d 4h"),
    ],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_that_a_letter_gives_is_the_same_in_an_option(milliseconds: int) -> None:
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    text = time.isoformat(timespec="milliseconds")
    assert (
        epoch_ms(text) == time_of_option(text) == time_of_option(text.replace("+00:00", "Z")) == milliseconds
    )


def test_times_are_utc() -> None:
    assert iso_time(1_700_000_000_999) == "2023-11-14T22:13:20Z"


def test_sequence_numbers_are_cut_in_the_middle() -> None:
    first, second = "4965" + "0" * 40 + "123456789012", "4965" + "0" * 40 + "123456789013"
    assert short(f"AFTER_SEQUENCE_NUMBER {first}:3") == "AFTER_SEQUENCE_NUMBER 4965…123456789012:3"
    assert short(first) != short(second)


@given(st.text(alphabet=st.characters(exclude_categories=["N"])))
def test_other_text_stays_as_it_is(text: str) -> None:
    assert short(text) == text
