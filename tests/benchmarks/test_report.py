"""Sections of docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_best_is_the_shortest_run() -> None:
    calls: list[int] = []
    assert 0 < best(lambda: calls.append(1), times=3) < 60
    assert len(calls) == 3
