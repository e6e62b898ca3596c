"""Build sdist, wheel and their bill of materials into dist/, and check all three: `make release` runs this.

    python -m release [--rehearsal] [--tag v1.0.0] [--only "PySpark 4.3"]

It publishes nothing. The last lines say what was not checked. Where CI is `true`, nothing may be left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.history import declines, history_of, pages_of
from benchmarks.provenance import outdated_sections
from release import archives, changelog, public_names, sbom
from release.changelog import ReleaseError
from release.installed import check, install
from release.matrix import Cell, cells
from release.processes import StepFailedError, find_python, run

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
TOOLS = Path(sys.executable).parent


def say(text: str) -> None:
    """Print a line now: the steps take minutes."""
    print(f"release: {text}", flush=True)


def build(project: dict[str, Any]) -> dict[str, Path]:
    """Build both archives of what is committed; return them by kind.

    Raises:
        ReleaseError: something of them is not as it must be.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT, cwd=ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    wanted = archives.modules(run("/usr/bin/env", "git", "ls-files", cwd=ROOT).stdout.splitlines())
    found = []
    for archive in (wheel, sdist):
        files, size = archives.files_of(archive), archive.stat().st_size
        found += archives.faults(archive.name, files, size, wanted)
        say(f"{archive.name}: {len(files)} files, {size:,} bytes")
    metadata = archives.metadata_of(wheel)
    if metadata["Version"] != project["version"]:
        found.append(f"{wheel.name} is of version {metadata['Version']}")
    bill = wheel.with_name(f"{archives.NAME}-{project['version']}.cdx.json")
    sbom.write(
        wheel, bill, tools=TOOLS, constraints=ROOT / "constraints.txt", pyproject=ROOT / "pyproject.toml"
    )
    found += [f"{bill.name}: {fault}" for fault in sbom.faults(bill.read_text(), metadata)]
    if found:
        raise ReleaseError("\n".join(found))
    say(f"{bill.name}: what the wheel brings, with the versions of constraints.txt")
    run(TOOLS / "twine", "check", "--strict", wheel, sdist, cwd=ROOT)
    say("twine check --strict: passed")
    return {"wheel": wheel, "sdist": sdist}


def check_cell(cell: Cell, python: Path, archive: Path, version: str) -> None:
    """Check an archive in an environment that lasts no longer than this."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kinesis-trident-release-") as name:
        folder = Path(name)
        installed = install(cell, python, archive, TOOLS / "uv", ROOT / "pyproject.toml", folder)
        say(f"{cell}: installed ({time.monotonic() - began:.0f} s)")
        for line in check(cell, installed, version, TOOLS / "mypy", folder):
            say(f"  {line}")


def check_ready(project: dict[str, Any], *, tag: str | None, rehearsal: bool) -> None:
    """Raise ReleaseError unless the version has its entry and tag, all is committed, and figures are of its code."""
    version = project["version"]
    if tag is not None:
        changelog.check_tag(tag, version)
    entry = changelog.entry_of((ROOT / "CHANGELOG.md").read_text(), version, rehearsal=rehearsal)
    say(f"version {version}, entry '{entry}' of CHANGELOG.md")
    check_names(
        changelog.lines_under((ROOT / "CHANGELOG.md").read_text(), entry, "Removed", "Changed"), version
    )
    if changed := run("/usr/bin/env", "git", "status", "--porcelain", cwd=ROOT).stdout.strip():
        msg = f"what is built would not be what is committed. Commit or remove:\n{changed}"
        raise ReleaseError(msg)
    if outdated := [*outdated_sections((ROOT / "docs" / "benchmarks" / "figures.md").read_text())]:
        msg = "docs/benchmarks/figures.md has figures of other code:\n" + "\n".join(outdated)
        if not rehearsal:
            raise ReleaseError(msg)
        say(msg)
    for line in declines(history_of(pages_of())):
        say(f"a figure of docs/benchmarks.md declines: {line}")


def check_names(said: str, version: str) -> None:
    """Raise ReleaseError unless the changelog says what has become of the public names of the last release."""
    last = public_names.last_release(run("/usr/bin/env", "git", "tag", cwd=ROOT).stdout.split(), version)
    if last is None:
        say(f"no release before {version} has a tag: its public names are compared with nothing")
        return
    found = [*public_names.changes(public_names.load(ROOT, last), public_names.load(ROOT))]
    if unsaid := public_names.unsaid(found, said):
        msg = (
            f"public names of {last} are gone or changed. Name each under '### Removed' or '### Changed' of "
            "CHANGELOG.md:\n" + "\n".join(map(str, unsaid))
        )
        raise ReleaseError(msg)
    say(f"public names since {last}: {len(found)} gone or changed, each in CHANGELOG.md")


def main() -> None:
    """Exit with 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rehearsal", action="store_true", help="take the entry Unreleased for that of the version"
    )
    parser.add_argument(
        "--only", default="", help="check only environments with this in their name, such as 3.13"
    )
    parser.add_argument("--tag", help="the tag of the release, which must be that of the version")
    asked = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        check_ready(project, tag=asked.tag, rehearsal=asked.rehearsal)
        built = build(project)
    except (ReleaseError, StepFailedError) as error:
        sys.exit(f"release: {error}")
    failed: list[Cell] = []
    missing: dict[Cell, str] = {}
    for cell in cells(project, (ROOT / "constraints.txt").read_text()):
        python = find_python(cell.python)
        if asked.only not in str(cell):
            missing[cell] = f"--only {asked.only}"
            continue
        if python is None:
            missing[cell] = f"no python{cell.python} is on the PATH or with pyenv"
            continue
        try:
            check_cell(cell, python, built[cell.artifact], project["version"])
        except StepFailedError as error:
            say(f"{cell}: FAILED: {error}")
            failed.append(cell)
    for cell in failed:
        say(f"failed: {cell}")
    for cell, why in missing.items():
        say(f"NOT CHECKED: {cell}: {why}")
    if failed or (missing and os.environ.get("CI") == "true"):
        sys.exit(1)
    say(f"{DIST.relative_to(ROOT)}/ is ready" + (", but for what was not checked" if missing else ""))


if __name__ == "__main__":
    main()
