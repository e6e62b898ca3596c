"""Figures of the benchmarks that other pages quote."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quotes import refreshed
from benchmarks.report import Section, publish

COLUMNS = ["a page of `200 B`", "records/s", "to boto3"]


def measured(figure: str) -> Section:
    rows = [["client: pages", figure, "2.0 x"], ["same", "1", "2"]]
    return Section("fetch", "Reading (all), from Kinesis", "python -m benchmarks.fetch", COLUMNS, rows)


LINK = "benchmarks/figures.md#reading-all-from-kinesis"
PAGE = f"""Reads [{{}}]({LINK} "client: pages; records/s")/s, and
| [us]({LINK}) | [{{}}]({LINK} "same; to boto3") |
"""


def test_a_measurement_renews_what_pages_quote_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark"])
    figures = tmp_path / "benchmarks" / "figures.md"
    figures.parent.mkdir()
    (tmp_path / "sizing.md").write_text(PAGE.format("17", "-"), encoding="utf-8")
    publish(measured("411 k"), figures)
    assert (tmp_path / "sizing.md").read_text(encoding="utf-8") == PAGE.format("411 k", "2")
    publish(measured("98"), figures)
    assert (tmp_path / "sizing.md").read_text(encoding="utf-8") == PAGE.format("98", "2")


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ('reading-all-from-kinesis "client: pages; bytes"', "quote one of 'client: pages; records/s', "),
        ('writing "client: pages; records/s"', "quote one of a section that is there"),
    ],
)
def test_a_quote_of_nothing_is_refused(link: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        refreshed(f"[1](benchmarks/figures.md#{link})", measured("411 k").markdown())
