"""What `make release` decides: the changelog's entry, the environments, the faults of archives and of imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from release import __main__ as program, archives, imports, sbom
from release.changelog import ReleaseError, check_tag, entry_of, lines_under
from release.matrix import Cell, cells
from release.processes import StepFailedError, find_python, run
from release.public_names import PUBLIC, Change, changes, last_release, load, unsaid

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
HEAD = "# Changelog\n\nThis file follows a form.\n\n"
ENTRY = "### Added\n\n- Something.\n\n"


def test_the_entry_of_a_version_is_found_by_its_heading() -> None:
    text = f"{HEAD}## Unreleased\n\n## 1.1.0 - 2026-12-01\n\n{ENTRY}## 1.0.0 - 2026-11-01\n\n{ENTRY}"
    assert entry_of(text, "1.1.0") == "1.1.0 - 2026-12-01"
    assert entry_of(text, "1.1.0", rehearsal=True) == "1.1.0 - 2026-12-01"
    begun = text.replace("## Unreleased\n", f"## Unreleased\n\n{ENTRY}")
    assert entry_of(begun, "1.1.0", rehearsal=True) == "Unreleased"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"## Unreleased\n\n{ENTRY}", "has no entry for version 1.0.0"),
        (f"## 1.0.0rc1 - 2026-12-01\n\n{ENTRY}", "has no entry for version 1.0.0"),
        (f"## 1.0.0\n\n{ENTRY}", "Write it as '## 1.0.0 - YYYY-MM-DD'"),
        (f"## 1.0.0 - soon\n\n{ENTRY}", "Write it as '## 1.0.0 - YYYY-MM-DD'"),
        (f"## 1.0.0 - 2026-12-01\n\n## 0.1.0 - 2026-11-01\n\n{ENTRY}", "says nothing under"),
        (
            f"## Unreleased\n\n{ENTRY}## 1.0.0 - 2026-12-01\n\n{ENTRY}",
            "still has entries under '## Unreleased'",
        ),
        (f"## 1.0.0 - 2026-12-01\n\n{ENTRY}## 1.0.0 - 2026-12-01\n\n{ENTRY}", "twice"),
    ],
)
def test_a_version_without_its_entry_is_refused(text: str, what: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(what)):
        entry_of(HEAD + text, "1.0.0")


def test_renaming_the_heading_of_this_changelog_makes_it_ready() -> None:
    """The way out that the error names."""
    text, heading = (ROOT / "CHANGELOG.md").read_text(), "\n## Unreleased\n"
    if heading not in text:
        # As it is in the commit of a release.
        assert entry_of(text, PROJECT["version"])
        return
    assert entry_of(text, "99.0.0", rehearsal=True) == "Unreleased"
    with pytest.raises(ReleaseError, match=re.escape("'## Unreleased' to '## 99.0.0 - YYYY-MM-DD'")):
        entry_of(text, "99.0.0")
    assert entry_of(text.replace(heading, "\n## 99.0.0 - 2026-12-01\n"), "99.0.0") == "99.0.0 - 2026-12-01"


def test_the_tag_is_that_of_the_version() -> None:
    check_tag("v1.0.0", "1.0.0")
    with pytest.raises(ReleaseError, match=re.escape("Tag the release as v1.0.0")):
        check_tag("v1.0.1", "1.0.0")


def test_the_last_release_is_the_newest_before_this_one() -> None:
    tags = ["v1.9.0", "v1.10.0", "v2.0.0", "v1.11.0rc1", "weekly"]
    assert last_release(tags, "2.0.0") == "v1.10.0"
    assert last_release(tags, "1.9.0") is None


def test_an_entry_is_read_below_the_headings_that_are_asked_for() -> None:
    said = "### Removed\n\n- `one`.\n\n### Changed\n\n- `two`.\n\n"
    text = f"{HEAD}## Unreleased\n\n{ENTRY}{said}## 1.0.0 - 2026-11-01\n"
    assert re.findall("`(.+)`", lines_under(text, "Unreleased", "Removed", "Changed")) == ["one", "two"]
    assert lines_under(text, "Unreleased", "Fixed") == ""


FACE = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinesis_trident.inner import Acks as Acks, stop as stop, Private
"""
INNER = """
class Acks:
    def ack(self, one, *, most=10): ...
    def fail(self, one): ...
class Private: ...
def stop(query): ...
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project whose last release, v1.0.0, had the names above."""
    package = tmp_path / "kinesis_trident"
    package.mkdir()
    (package / "__init__.py").write_text(FACE)
    (package / "inner.py").write_text(INNER)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"], ["tag", "v1.0.0"]):
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
    return tmp_path


def changed(clone: Path) -> list[Change]:
    return [*changes(load(clone, "v1.0.0"), load(clone))]


def test_a_public_name_may_move_and_gain_what_nobody_has_to_give(clone: Path) -> None:
    assert changed(clone) == []
    inner = clone / "kinesis_trident" / "inner.py"
    inner.write_text(
        inner.read_text()
        .replace("stop(query)", "stop(query, timeout=1)")
        .replace("class Private: ...", "def stop_all(): ...")
    )
    inner.rename(inner.with_name("outer.py"))
    face = clone / "kinesis_trident" / "__init__.py"
    face.write_text(face.read_text().replace("inner", "outer").replace(", Private", ", stop_all as stop_all"))
    assert changed(clone) == []


def test_what_a_program_would_miss_of_a_public_name_needs_a_line(clone: Path) -> None:
    inner = clone / "kinesis_trident" / "inner.py"
    inner.write_text("class Acks:\n    def ack(self, one, *, most=20): ...\ndef stop(query): ...\n")
    face = clone / "kinesis_trident" / "__init__.py"
    face.write_text(face.read_text().replace("stop as stop, ", ""))
    found = changed(clone)
    assert [one.name for one in found] == [
        f"{PUBLIC[0]}.{name}" for name in ("Acks.ack", "Acks.fail", "stop")
    ]
    assert str(found[0]) == "kinesis_trident.Acks.ack: parameter default was changed: most"
    assert unsaid(found, "- `stop` is gone, `Acks.fail(one)` too, and no ack.") == found[:1]
    assert unsaid(found, "- `stop`, `Acks.fail`, `Acks.ack(one, most=)`") == []


def test_a_release_that_does_not_say_what_it_breaks_is_refused(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "ROOT", clone)
    face = clone / "kinesis_trident" / "__init__.py"
    face.write_text(face.read_text().replace("stop as stop, ", ""))
    with pytest.raises(ReleaseError, match=re.escape("CHANGELOG.md:\nkinesis_trident.stop: is gone")):
        program.check_names("", "1.1.0")
    program.check_names("- `stop` is gone.", "1.1.0")
    program.check_names("", "1.0.0")
    assert capsys.readouterr().out.splitlines() == [
        "release: public names since v1.0.0: 1 gone or changed, each in CHANGELOG.md",
        "release: no release before 1.0.0 has a tag: its public names are compared with nothing",
    ]


def test_the_names_that_are_compared_are_those_of_each_module_that_offers_them() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("kinesis_trident", *archives.PACKAGES)
        for path in (ROOT / folder).rglob("*.py")
        if "= lazy_names(__name__" in path.read_text()
    }
    # The face of Trident offers the names of its stores.
    found = {
        f"kinesis_trident.{name.removeprefix('kinesis_trident.')}" for name in modules - {"trident.stores"}
    }
    assert found - {"kinesis_trident.kinesis_trident"} | {"kinesis_trident"} == set(PUBLIC)


def test_the_environments_have_each_python_and_each_spark() -> None:
    project = {
        "classifiers": [f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12")],
        "optional-dependencies": {"spark": ["pyspark>=4.2"]},
    }
    assert cells(project, "pyarrow==1\npyspark==4.3.0\n") == [
        Cell("3.11", "4.2", "lowest"),
        Cell("3.11", "4.2"),
        Cell("3.11", "4.3"),
        Cell("3.12", "4.2"),
        Cell("3.12", "4.3"),
        Cell("3.11", "4.3", artifact="sdist"),
        Cell("3.12", "4.3", is_thin=True),
    ]
    with pytest.raises(ValueError, match="several minor versions"):
        cells(project, "pyspark==5.0.0\n")
    newer = {
        "classifiers": ["Programming Language :: Python :: 3.14"],
        "optional-dependencies": {"spark": ["pyspark>=4.0"]},
    }
    assert Cell("3.14", "4.0") not in cells(newer, "pyspark==4.1.0\n")
    assert Cell("3.14", "4.1") in cells(newer, "pyspark==4.1.0\n")


def test_a_release_is_checked_on_what_the_tests_run_on() -> None:
    matrix = yaml.safe_load((WORKFLOWS / "tests.yml").read_text())["jobs"]["tests"]["strategy"]["matrix"]
    chosen = cells(PROJECT, (ROOT / "constraints.txt").read_text())
    assert {cell.python for cell in chosen} == set(matrix["python"])
    assert {cell.spark for cell in chosen} == set(matrix["pyspark"])


def test_the_workflow_of_releases_has_each_python_and_no_secret() -> None:
    text = (WORKFLOWS / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    # YAML 1.1 reads the key `on` as a boolean. No other character of a tag gets into the shell.
    assert workflow[True]["push"]["tags"] == ["v[0-9]+.[0-9]+.[0-9]+"]
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in text
    steps = workflow["jobs"]["release"]["steps"]
    (pythons,) = (step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", ""))
    assert set(pythons.split()) == {
        cell.python for cell in cells(PROJECT, (ROOT / "constraints.txt").read_text())
    }


def test_each_action_is_named_by_its_digest() -> None:
    """A tag of another's repository may be moved to other code."""
    for path in WORKFLOWS.glob("*.yml"):
        used = re.findall(r"uses: (.+)", path.read_text())
        assert used
        assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_publishing_is_left_off_and_needs_a_release_that_was_checked() -> None:
    job = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]["publish"]
    assert job["if"] == "github.ref_type == 'tag' && vars.PUBLISH == 'true'"
    assert job["needs"] == "release"
    # It proves who it is to the index with a token of this one run.
    assert job["permissions"] == {"id-token": "write"}
    assert not any("password" in str(step) for step in job["steps"])


BILL = {
    "metadata": {"component": {"name": "k", "version": "1"}},
    "components": [{"name": "Kazoo"}, {"name": "rich"}],
}
NEEDED = """Name: k
Version: 1
Requires-Dist: kazoo>=2
Requires-Dist: redis>=6; extra == 'redis'
Requires-Dist: rich
"""


def test_a_bill_of_materials_lists_what_a_wheel_needs() -> None:
    def of(bill: object, metadata: str) -> list[str]:
        return sbom.faults(json.dumps(bill), Parser().parsestr(metadata))

    assert of(BILL, NEEDED) == []
    assert of(BILL, f"{NEEDED}Requires-Dist: numpy\n") == ["it lacks numpy"]
    assert of(BILL, NEEDED.replace("Version: 1", "Version: 2")) == ["it describes k 1"]


GOOD = {
    "kinesis_trident/__init__.py",
    "kinesis_trident/py.typed",
    "kinesis_trident/spout/source.py",
    archives.DISCOVERY,
}
IN_WHEEL = [
    *GOOD,
    "k-1.dist-info/METADATA",
    "k-1.dist-info/licenses/LICENSE",
    "k-1.dist-info/licenses/NOTICE",
]
IN_SDIST = [*GOOD, *archives.BESIDE]


def test_the_package_is_what_git_holds_of_it() -> None:
    paths = ["README.md", "tests/x.py", "kinesis_trident/__init__.py", "kinesis_trident/py.typed"]
    assert archives.modules([*paths, "kinesis_trident/spout", "spout/source.py"]) == GOOD


def test_good_archives_have_no_faults() -> None:
    assert archives.faults("k.whl", IN_WHEEL, 1000, GOOD) == []
    assert archives.faults("k.tar.gz", IN_SDIST, 1000, GOOD) == []


@pytest.mark.parametrize("name", ["k.whl", "k.tar.gz"])
def test_each_fault_of_an_archive_is_named(name: str) -> None:
    files = IN_WHEEL if name == "k.whl" else IN_SDIST

    def without(end: str) -> list[str]:
        return archives.faults(name, [file for file in files if not file.endswith(end)], 1000, GOOD)

    assert without("source.py") == [f"{name} lacks files of the checkout: kinesis_trident/spout/source.py"]
    assert without("NOTICE") == [f"{name} lacks NOTICE"]
    assert any("type checkers" in fault for fault in without("py.typed"))
    (fault,) = archives.faults(name, [*files, "stray.py"], 1000, GOOD)
    assert fault == f"{name} has files that are not in git: stray.py"
    (fault,) = archives.faults(name, [*files, archives.DISCOVERY], 1000, GOOD)
    assert fault == f"{name} has files twice: {archives.DISCOVERY}"
    (fault,) = archives.faults(name, files, archives.MOST_BYTES + 1, GOOD)
    assert "look at what is in it" in fault


REPORT = """\
import time: self [us] | cumulative | imported package
import time:       100 |        100 | site
import time:        10 |         10 |     kinesis_trident.inner
import time:        10 |         20 |   {second}
import time:         5 |         {total} | kinesis_trident
"""


def test_an_import_is_read_with_what_it_brings_along() -> None:
    found = imports.parse_import(REPORT.format(second="json", total=25), "kinesis_trident")
    assert found == imports.Import(("kinesis_trident.inner", "json", "kinesis_trident"), 25)
    with pytest.raises(ValueError, match="names no import of pyspark"):
        imports.parse_import(REPORT, "pyspark")


def test_a_library_and_a_long_time_are_faults_of_an_import() -> None:
    spark = imports.Import(("pyspark",), 1000)

    def faults(second: str, *totals: int) -> list[str]:
        texts = [REPORT.format(second=second, total=total) for total in totals]
        ours = [imports.parse_import(text, "kinesis_trident") for text in texts]
        return imports.faults("kinesis_trident", ours, [spark])

    assert faults("json", 900, 250) == []
    assert faults("json", 900, 251) == ["import kinesis_trident takes 25% of the time of import pyspark"]
    assert faults("pandas.core", 25) == ["import kinesis_trident loads pandas.core"]


def test_python_itself_reports_imports_in_this_form(tmp_path: Path) -> None:
    report = run(sys.executable, "-X", "importtime", "-c", "import asyncio", cwd=tmp_path).stderr
    assert "asyncio.events" in imports.parse_import(report, "asyncio").modules


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match=r"exit code 3\n.*too bad"):
        run(sys.executable, "-c", "import sys; print('too bad'); sys.exit(3)", cwd=tmp_path)


def test_a_python_that_does_not_start_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyenv's shims of versions that are not chosen."""
    version = "{}.{}".format(*sys.version_info)
    for folder, script in (
        ("shims", "#!/bin/sh\nexit 127\n"),
        ("good", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
    ):
        program = tmp_path / folder / f"python{version}"
        program.parent.mkdir()
        program.write_text(script)
        program.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'good'}:/usr/bin:/bin")
    assert find_python(version) == tmp_path / "good" / f"python{version}"
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:/usr/bin:/bin")
    assert find_python("9.9") is None


def test_a_wrong_tag_ends_make_release_before_anything_is_built() -> None:
    program = [sys.executable, "-m", "release", "--tag", "v0.0.0"]
    done = subprocess.run(program, cwd=ROOT / ".ci", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"release: the tag v0.0.0 is not that of version {PROJECT['version']} of pyproject.toml. "
        f"Tag the release as v{PROJECT['version']}\n"
    )
