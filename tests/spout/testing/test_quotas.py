from __future__ import annotations

import pytest

from kinesis_trident.spout.kinesis import ThrottledError
from kinesis_trident.spout.testing.quotas import Quotas, ShardQuota

NOW = 1_700_000_000_000
AWS = Quotas()


@pytest.fixture
def used() -> ShardQuota:
    return ShardQuota("shard")


def test_five_reads_in_any_second(used: ShardQuota) -> None:
    for at in (0, 100, 200, 300, 999):
        used.read(AWS, NOW + at)
    with pytest.raises(ThrottledError, match="shard"):
        used.read(AWS, NOW + 999)
    used.read(AWS, NOW + 1000)
    with pytest.raises(ThrottledError):
        used.read(AWS, NOW + 1099)
    used.read(AWS, NOW + 1100)


def test_a_read_that_was_refused_does_not_count(used: ShardQuota) -> None:
    for _ in range(5):
        used.read(AWS, NOW)
    for at in range(0, 1000, 100):
        with pytest.raises(ThrottledError):
            used.read(AWS, NOW + at)
    used.read(AWS, NOW + 1000)


def test_a_full_answer_blocks_for_five_seconds(used: ShardQuota) -> None:
    used.read(AWS, NOW)
    used.note_answer(10 * 2**20, AWS, NOW)
    with pytest.raises(ThrottledError):
        used.read(AWS, NOW + 4999)
    used.read(AWS, NOW + 5000)


def test_answers_within_a_second_add_up(used: ShardQuota) -> None:
    for at in (0, 100):
        used.read(AWS, NOW + at)
        used.note_answer(2**20, AWS, NOW + at)
    with pytest.raises(ThrottledError):
        used.read(AWS, NOW + 999)
    used.read(AWS, NOW + 1000)


def test_a_thousand_records_or_a_mebibyte_written_a_second(used: ShardQuota) -> None:
    for _ in range(1000):
        used.write(1, AWS, NOW)
    with pytest.raises(ThrottledError):
        used.write(1, AWS, NOW)
    used.write(2**20, AWS, NOW + 1000)
    with pytest.raises(ThrottledError):
        used.write(1, AWS, NOW + 1999)


def test_a_record_larger_than_a_second_s_share_can_be_written(used: ShardQuota) -> None:
    used.write(10 * 2**20, AWS, NOW)
    with pytest.raises(ThrottledError):
        used.write(1, AWS, NOW + 1)


def test_without_quotas_nothing_is_refused(used: ShardQuota) -> None:
    for _ in range(2000):
        used.read(Quotas.none(), NOW)
        used.note_answer(10 * 2**20, Quotas.none(), NOW)
        used.write(2**20, Quotas.none(), NOW)
