"""Figures of docs/benchmarks/figures.md say the commit that they were measured at; other code than that is found."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks import provenance, report
from benchmarks.provenance import COUNTED, MEASURED, ROOT, changed_figures, outdated_sections
from benchmarks.report import BENCHMARKS, Section, publish

PAGE = BENCHMARKS.read_text()
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"<!-- begin: (\S+) -->\n(.*?)<!-- end: \1 -->", PAGE, re.DOTALL)
}


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_says_its_commit_and_what_it_measures(name: str) -> None:
    assert re.search(r"^`python -m benchmarks\.[^`]+`, [^`]*, commit `[0-9a-f]{10}`\.", SECTIONS[name], re.M)
    assert all((ROOT / path).exists() for path in MEASURED[name]), MEASURED[name]


@pytest.mark.parametrize("name", COUNTED)
def test_each_counted_figure_is_a_row_or_a_column(name: str) -> None:
    lines = [line[2:-2].split(" | ") for line in SECTIONS[name].splitlines() if line.startswith("| ")]
    rows = [line[0] for line in lines]
    single = [f"{row}; {column}" for row in rows for column in lines[0]]
    assert {*COUNTED[name]} <= {*lines[0], *rows, *single}
    command = re.search(r"`python -m (benchmarks\.\w+)", SECTIONS[name])
    assert command
    assert command[1] in re.search(r"^COUNTING \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()  # type: ignore[index]


def run(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(done.stderr)
    return done.stdout.strip()


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A clone in which the acker was changed once."""
    git = partial(run, tmp_path)
    git("init", "-q")
    change(tmp_path, git, "tracker/acker.py")
    monkeypatch.setattr(report, "commit_of", partial(provenance.commit_of, git=git))
    monkeypatch.setattr("sys.argv", ["benchmark"])
    return git


def change(folder: Path, git: Callable[..., str], name: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{path.read_text() if path.exists() else ''}#\n")
    git("add", "-A")
    git("commit", "-qm", "change")


def section(figure: str, name: str = "acker") -> Section:
    columns = ["trees", "values a second", "bytes a pending root"]
    return Section(name, "The acker", "python -m benchmarks.acker", columns, [["in order", "9 M", figure]])


def test_a_section_is_of_its_commit_until_what_it_measures_is_changed(
    tmp_path: Path, git: Callable[..., str]
) -> None:
    page = tmp_path / "page.md"
    publish(section("8.0"), page)
    assert f"commit `{git('log', '-1', '--format=%h', '--abbrev=10')}`." in page.read_text()
    change(tmp_path, git, "docs/other.md")
    assert [*outdated_sections(page.read_text(), git)] == []
    change(tmp_path, git, "tracker/acker.py")
    assert [*outdated_sections(page.read_text(), git)] == [
        "acker: 1 commits to tracker are newer. Run `python -m benchmarks.acker`"
    ]
    publish(section("8.0"), page)
    assert [*outdated_sections(page.read_text(), git)] == []


def test_figures_of_what_is_not_committed_are_refused(tmp_path: Path, git: Callable[..., str]) -> None:
    (tmp_path / "tracker" / "acker.py").write_text("changed")
    with pytest.raises(ValueError, match=r"Commit first:\n.*tracker/acker\.py"):
        publish(section("8.0"), tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize("commit", ["", "deadbeef00"])
def test_a_section_of_no_known_commit_is_outdated(commit: str, git: Callable[..., str]) -> None:
    assert [*outdated_sections(section("8.0").markdown(commit), git)] == [
        "acker: of no known commit. Run `python -m benchmarks.acker`"
    ]
    (said,) = outdated_sections(section("8.0", "new").markdown(commit), git)
    assert said.startswith("new: nothing says what it measures")


@pytest.mark.parametrize(
    ("figure", "is_same"), [("8.0", True), ("8.3", True), ("8.6", False), ("8 KiB", False)]
)
def test_a_counted_figure_is_compared_with_the_page(
    figure: str, is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(section("8.0").markdown())
    before = page.read_text()
    monkeypatch.setattr("sys.argv", ["benchmark", "--compare"])
    if is_same:
        publish(section(figure), page)
    else:
        with pytest.raises(SystemExit, match=f"bytes a pending root: the page says 8.0, and it is {figure}"):
            publish(section(figure), page)
    assert page.read_text() == before


def test_counted_figures_are_mended_and_what_is_timed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    text = section("8.0").markdown("deadbeef00") + "\n" + section("8.0", "other").markdown()
    page.write_text(text)
    monkeypatch.setattr("sys.argv", ["benchmark", "--mend"])
    new = section("17.2")
    publish(Section(new.name, new.title, new.command, new.columns, [["in order", "2 M", "17.2"]]), page)
    assert page.read_text() == text.replace("8.0", "17.2", 1)


def test_what_is_timed_is_not_compared() -> None:
    rows = [["in order", "99 M", "8.0"]]
    assert [*changed_figures("acker", section("8.0").columns, rows, section("8.0").markdown())] == []


def test_a_figure_that_the_page_does_not_have_is_another() -> None:
    (said,) = changed_figures(
        "acker", section("8.0").columns, [["new", "9 M", "8.0"]], section("8.0").markdown()
    )
    assert "the page says nothing" in said
