"""The history of bounded figures: what of a page is one, which side of its bound it is on, and what a decline is."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_provenance import SECTIONS

from benchmarks.history import bounded_figures, declines, history_of, plot_of

ROOT = Path(__file__).resolve().parents[2]


def page(rows: str, commit: str = "a1", head: str = "| what | ours | bound |") -> str:
    said = f"`python -m x`, commit `{commit}`. Note.\n\n"
    return f"<!-- begin: calls -->\n{said}{head}\n|---|\n{rows}\n<!-- end: calls -->\n"


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("| one | 0.2 x | 0.5 x |", 0.4),
        ("| one | 0.6 x | 0.5 x, missed |", 1.2),
        ("| one | 5 k | 2 k |", 0.4),
        ("| one | 1,000 k | 2,000 k, missed |", 2.0),
        ("| one | 350 ms (bound 700) | |", 0.5),
        ("| one | | 50 % to 0 %: 0.2 (bound at least 0.4, missed) |", 2.0),
        ("| one | 0 | 10 |", 0.0),
    ],
)
def test_a_figure_takes_a_part_of_its_bound_on_whichever_side_it_has_to_be(row: str, part: float) -> None:
    ((commit, one),) = bounded_figures(page(row))
    assert (commit, one.section, one.name.partition(",")[0], one.part) == (
        "a1",
        "calls",
        "one",
        pytest.approx(part),
    )


@pytest.mark.parametrize("row", ["| records, bound 32 MiB | 45 MiB | |", "| one | 0.2 x |  |"])
def test_a_row_without_a_bound_has_no_part(row: str) -> None:
    assert [*bounded_figures(page(row))] == []


def test_the_head_of_a_column_may_have_the_bound_of_its_figures() -> None:
    ((_, one),) = bounded_figures(page("| one | 1.2, missed |", head="| what | b (bound 1.0) |"))
    assert one.part == pytest.approx(1.2)


def test_a_section_that_was_not_measured_anew_counts_once() -> None:
    pages = [page(f"| one | {figure} | 10 |", commit) for figure, commit in ((2, "a1"), (2, "a1"), (4, "b2"))]
    assert history_of(pages) == {("calls", "one"): [0.2, 0.4]}


def test_what_the_page_no_longer_has_is_left_out() -> None:
    assert history_of([page("| one | 2 | 10 |"), page("| two | 2 | 10 |", "b2")]) == {("calls", "two"): [0.2]}


def test_a_decline_is_more_of_the_bound_than_in_the_median_before() -> None:
    history = {
        ("calls", "one"): [0.2, 0.9, 0.5, 0.54],
        ("calls", "two"): [0.2, 0.9, 0.5, 0.56],
        ("calls", "new"): [2.0],
    }
    assert [*declines(history)] == ["calls: two: 50% of its bound in 3 measurements, now 56%"]


def test_the_curves_end_with_the_newest_measurement() -> None:
    plot = plot_of({("calls", "one"): [0.2, 0.4], ("calls", "two"): [0.5], ("sink", "one"): [1.0, 1.0]})
    assert [*plot.x] == [-1, 0]
    assert [panel.curves for panel in plot.panels] == [
        {"one": [0.2, 0.4], "two": [None, 0.5]},
        {"one": [1.0, 1.0]},
    ]


def test_each_bound_of_the_page_is_found() -> None:
    text = (ROOT / "docs" / "benchmarks" / "figures.md").read_text()
    found = [one for _, one in bounded_figures(text)]
    assert len(found) >= 70
    # The page says itself which are missed.
    missed = sum(body.count(", missed") for body in SECTIONS.values())
    assert sum(one.part > 1 for one in found) == missed
