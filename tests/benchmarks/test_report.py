"""Sections of docs/benchmarks/figures.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plots import Panel, Plot
from benchmarks.report import Section, best, publish, updated


def section(name: str, figure: str) -> Section:
    return Section(name, f"Of {name}", f"python benchmarks/{name}.py", ["what", "ms"], [["it", figure]])


def test_a_section_replaces_its_own_and_leaves_the_others_alone() -> None:
    text = "# Benchmarks\n\nWords.\n"
    for name, figure in (("a", "1"), ("b", "2"), ("c", "3")):
        text = updated(text, section(name, figure))
    changed = updated(text, section("b", r"9 \1"))
    assert changed == text.replace("| it | 2 |", r"| it | 9 \1 |")
    assert changed.startswith("# Benchmarks\n\nWords.\n")
    assert updated(changed, section("b", r"9 \1")) == changed


def test_a_section_names_its_command_and_is_a_table() -> None:
    text = section("a", "1").markdown()
    assert "`python benchmarks/a.py`" in text
    assert "| what | ms |\n|---|---:|\n| it | 1 |\n" in text


def test_a_lone_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="section 'a'"):
        updated("<!-- begin: a -->", section("a", "1"))


@pytest.mark.parametrize(("arguments", "written"), [([], True), (["--dry-run"], False)])
def test_publish_writes_unless_told_not_to(
    arguments: list[str],
    written: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", *arguments])
    path = tmp_path / "benchmarks.md"
    publish(section("a", "17"), path)
    assert "17" in capsys.readouterr().out
    assert path.exists() == written
    if written:
        assert "| it | 17 |" in path.read_text()


def test_a_plot_stands_below_its_table_and_changes_with_its_figures_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark"])

    def drawn(figure: float) -> bytes:
        panels = [
            Panel("ms", {"settle": [1, figure], "plan": [None, 2]}, bound=5),
            Panel("records/s", {"rate": [9, 8]}, bound=2, is_floor=True, log=True),
        ]
        plot = Plot("curves", "The time by shards", "shards", [10, 10_000], panels, log=True)
        publish(
            Section("a", "Of a", "a", ["what", "ms"], [["it", "1"]], plots=[plot]), tmp_path / "benchmarks.md"
        )
        return (tmp_path / "curves.svg").read_bytes()

    first = drawn(3)
    assert "| it | 1 |\n\n![The time by shards](curves.svg)\n" in (tmp_path / "benchmarks.md").read_text()
    for text in (b"bound: at most 5", b"bound: at least 2", b"10,000", b"records/s"):
        assert text in first
    assert drawn(3) == first
    assert drawn(4) != first


def test_best_is_the_shortest_run() -> None:
    calls: list[int] = []
    assert 0 < best(lambda: calls.append(1), times=3) < 60
    assert len(calls) == 3
