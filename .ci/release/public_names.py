"""The public names of the last release that are gone or changed, and what the changelog says of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe
from packaging.version import Version

from release.archives import NAME

__all__ = ["PUBLIC", "Change", "changes", "last_release", "load", "unsaid"]

PUBLIC = (
    NAME,
    f"{NAME}.decoders",
    f"{NAME}.errors",
    f"{NAME}.testing",
    f"{NAME}.trident",
    f"{NAME}.trident.maps",
)
"""The modules whose names are kept from one release to the next."""

_TAG = re.compile(r"v\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Change:
    """A name that a user's program may need to be changed for."""

    name: str
    """With its module, and its class if it has one."""
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def last_release(tags: Iterable[str], version: str) -> str | None:
    """Return the tag of the newest release before a version, or None."""
    earlier = [tag for tag in tags if _TAG.fullmatch(tag) and Version(tag) < Version(version)]
    return max(earlier, key=Version, default=None)


def load(root: Path, tag: str | None = None) -> griffe.Module:
    """Return the package as it is in a checkout, or as it was at a tag; nothing of it is imported.

    Raises:
        griffe.GitError: the clone has no such tag.
    """
    aliases = griffe.load_extensions("griffe_public_redundant_aliases")
    found = (
        griffe.load(
            NAME, search_paths=[root], try_relative_path=False, extensions=aliases, allow_inspection=False
        )
        if tag is None
        else griffe.load_git(NAME, ref=tag, repo=root, extensions=aliases, allow_inspection=False)
    )
    assert isinstance(found, griffe.Module)
    return found


def changes(old: griffe.Module, new: griffe.Module, modules: Iterable[str] = PUBLIC) -> Iterator[Change]:
    """Yield what is gone of the public names of modules, and what of them is used in another way."""
    for module in modules:
        before, after = (_names_of(package, module) for package in (old, new))
        for name, was in before.items():
            if name not in after:
                yield Change(f"{module}.{name}", "is gone")
                continue
            # What a name stands for may have moved.
            place = was.path
            boxes = [griffe.Module(module) for _ in range(2)]
            for box, thing in zip(boxes, (was, after[name]), strict=True):
                box.members[name] = thing
            for found in griffe.find_breaking_changes(*boxes):
                inner = found.obj.path.removeprefix(after[name].path).removeprefix(place)
                yield Change(f"{module}.{name}{inner}", _words_of(found))


def _names_of(package: griffe.Module, module: str) -> dict[str, griffe.Object]:
    """Return what each public name of a module stands for: those that it imports for others, `import x as x`."""
    place = module.partition(".")[2]
    try:
        members = (package[place] if place else package).members
    except KeyError:
        return {}
    return {
        name: each.final_target
        for name, each in members.items()
        if isinstance(each, griffe.Alias) and each.is_public
    }


def _words_of(found: griffe.Breakage) -> str:
    what = found.kind.value[0].lower() + found.kind.value[1:]
    parameter = next(
        (one for one in (found.old_value, found.new_value) if isinstance(one, griffe.Parameter)), None
    )
    return f"{what}: {parameter.name}" if parameter else what


def unsaid(found: Iterable[Change], lines: str) -> list[Change]:
    """Return the changes whose name no line says, of those that an entry has under Removed and Changed."""
    quoted = " ".join(re.findall(r"`([^`]+)`", lines))
    words = set(re.findall(r"\w+", quoted))
    return [change for change in found if change.name.rpartition(".")[2] not in words]
