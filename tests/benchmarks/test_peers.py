"""Other readers of Kinesis beside ours: what is measured of them, and how the table says it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.endpoint import PreparedEndpoint, Records
from benchmarks.peers.environments import PEERS, Peer, PeerError, measure
from benchmarks.peers.table import Result, bars, losses, rows
from benchmarks.plots import draw
from benchmarks.processors import Rate

PYTHON = Path(sys.executable)


def test_a_loop_of_boto3_counts_each_record_once_or_says_what_is_missing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    held = Records(shards=2, pages=2, page=50, size=10)
    loops = [peer for peer in PEERS if peer.module == "boto3_loop"]
    with PreparedEndpoint(held) as endpoint:
        for loop in loops:
            rate = measure(loop, PYTHON, endpoint.url, held)
            assert rate.clock > 0
            assert rate.processors > 0
        assert capfd.readouterr().out.count('"records": 200, "bytes": 2000,') == len(loops) == 2
        with pytest.raises(
            PeerError, match=r"^200 records with 2,000 bytes, where there are 400 with 4,000$"
        ):
            measure(loops[0], PYTHON, endpoint.url, Records(shards=2, pages=4, page=50, size=10))


def test_a_peer_that_fails_says_why() -> None:
    with pytest.raises(PeerError, match=r"No module named benchmarks\.peers\.of_nobody"):
        measure(Peer("nobody's", "of_nobody", ()), PYTHON, "http://127.0.0.1:1", Records())


def test_the_table_is_sorted_and_says_where_ours_loses(tmp_path: Path) -> None:
    ours = Result("200 B", "ours", Rate(100_000, 50_000), is_ours=True)
    slower = Result("200 B", "a loop", Rate(25_000, 25_000))
    assert losses([slower, ours]) == "Ours loses to none of them."
    thrifty = Result("200 B", "a thrifty one", Rate(50_000, 80_000))
    faster = Result("200 B", "a faster one", Rate(250_000, 40_000))
    lost = Result("200 B", "a broken one", None, reason="it needs DynamoDB")
    elsewhere = Result("1,024 B", "ours", Rate(1_000, 1_000), is_ours=True)
    results = [lost, slower, ours, thrifty, faster, elsewhere]
    assert losses(results) == (
        "Ours loses to a faster one: 200 B by the clock 2.50 x; "
        "to a thrifty one: 200 B in processor time 1.60 x. "
        "Not measured: 200 B, a broken one: it needs DynamoDB."
    )
    assert rows(results) == [
        ["200 B: a faster one", "250 k", "2.50 x", "25.00", "1.25 x"],
        ["200 B: ours", "100 k", "1.00 x", "20.00", "1.00 x"],
        ["200 B: a thrifty one", "50 k", "0.50 x", "12.50", "0.62 x"],
        ["200 B: a loop", "25 k", "0.25 x", "40.00", "2.00 x"],
        ["200 B: a broken one", "not measured", "", "", ""],
        ["1,024 B: ours", "1 k", "1.00 x", "1,000.00", "1.00 x"],
    ]
    drawn = bars("peers", "The readers", "record", results)
    assert drawn.labels == ["a faster one", "ours", "a thrifty one", "a loop", "a broken one"]
    clock, processors = (panel.curves for panel in drawn.panels)
    assert clock == {"200 B": [250, 100, 50, 25, None], "1,024 B": [None, 1, None, None, None]}
    assert processors == {"200 B": [25, 20, 12.5, 40, None], "1,024 B": [None, 1_000, None, None, None]}
    text = draw(drawn, tmp_path).read_text()
    assert all(label in text for label in (*drawn.labels, *clock, "µs of CPU a record"))
