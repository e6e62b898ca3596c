"""The changelog's part in a release: the version has an entry, and nothing stands beside it."""

from __future__ import annotations

import re

__all__ = ["ReleaseError", "check_tag", "entry_of", "lines_under"]

UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## (?P<name>.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(?P<version>\S+) - \d{4}-\d{2}-\d{2}")


class ReleaseError(Exception):
    """The project is not ready to be released; the message says what to do."""


def entry_of(changelog: str, version: str, *, rehearsal: bool = False) -> str:
    """Return the heading of a version's entry; in a rehearsal, `Unreleased` if something is below it.

    Raises:
        ReleaseError: there is no such entry, it is empty, or entries are left under `Unreleased`.
    """
    entries = _entries(changelog)
    if rehearsal and entries.get(UNRELEASED):
        return UNRELEASED
    names = [name for name in entries if name.partition(" ")[0] == version]
    if not names:
        msg = (
            f"CHANGELOG.md has no entry for version {version} of pyproject.toml. "
            f"Rename its heading '## {UNRELEASED}' to '## {version} - YYYY-MM-DD'"
        )
        raise ReleaseError(msg)
    (name,) = names
    if _RELEASED.fullmatch(name) is None:
        msg = f"CHANGELOG.md has the heading '## {name}'. Write it as '## {version} - YYYY-MM-DD'"
        raise ReleaseError(msg)
    if not entries[name]:
        msg = f"CHANGELOG.md says nothing under '## {name}'. Write what the version adds, fixes and changes"
        raise ReleaseError(msg)
    if entries.get(UNRELEASED):
        msg = (
            f"CHANGELOG.md still has entries under '## {UNRELEASED}', and version {version} would hold what they "
            f"describe. Move them below '## {name}'"
        )
        raise ReleaseError(msg)
    return name


def lines_under(changelog: str, entry: str, *headings: str) -> str:
    """Return what an entry says below headings of the third level."""
    parts = re.split(r"^### (.+)$", _entries(changelog)[entry], flags=re.MULTILINE)
    return "\n".join(
        text for heading, text in zip(parts[1::2], parts[2::2], strict=True) if heading in headings
    )


def _entries(changelog: str) -> dict[str, str]:
    """Return the text below each heading of the second level."""
    headings = list(_HEADING.finditer(changelog))
    ends = [*(heading.start() for heading in headings[1:]), len(changelog)]
    entries: dict[str, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        name = heading["name"].strip()
        if name in entries:
            msg = f"CHANGELOG.md has the heading '## {name}' twice. Merge both entries"
            raise ReleaseError(msg)
        entries[name] = changelog[heading.end() : end].strip()
    return entries


def check_tag(tag: str, version: str) -> None:
    """Raise ReleaseError unless the tag is `v` and the version."""
    if tag != f"v{version}":
        msg = (
            f"the tag {tag} is not that of version {version} of pyproject.toml. Tag the release as v{version}"
        )
        raise ReleaseError(msg)
