"""The floor plan: imports point one way, between packages and between the rooms of each package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "kinesis_trident"
ROOMS_MOST = 20

# From the ground up. A package imports those above it in this table. In a package, a room (a sub-package, or a module
# beside them) imports rooms of the floors before its own, never one of its own floor; `__init__` is its roof.
FLOORS = {
    "common": [
        "arrow_columns arrow_schemas arrow_streams errors open_files own_copies per_process prompt_sockets release "
        "stream_names visible_text worker_garbage",
        "instants private_names redaction times",
        "database folder lazy_names",
    ],
    "tracker": [
        "errors",
        "failure",
        "records",
        "few_failures ids packing position_keys retry",
        "runs",
        "clipping failed_pieces held_turns sums",
        "turns_by_txid",
        "open_shard",
        "acker given_turns inflight requests",
        "settling",
    ],
    "checkpoint": ["errors", "embedded model zookeeper", "store"],
    "spout": [
        "errors log_lines patience positions unsupported",
        "options",
        "kinesis spark_plan",
        "acks shard_rules failed_records partition testing",
        "data_loss turn_size",
        "planner reader",
        "batch engines",
        "graceful_stop query_by_hand sink",
        "source termination",
    ],
    "bolt": [
        "errors",
        "cancelling mark moves names partitions steps tagged",
        "calls failed_share outcomes",
        "decoders registry sinks tracking",
        "foreach_batch",
        "reliable storm",
        "testing",
    ],
    "trident": [
        "errors",
        "state tuples",
        "aggregators maps operations",
        "order",
        "steps stores",
        "windowing",
        "build",
        "bolts run",
        "stream",
        "topology",
        "testing",
    ],
    "console": [
        "finding machine text",
        "target",
        "snapshot",
        "changes scope",
        "figures",
        "dead_letter_replay moving",
        "examination abandoning redelivery rules views",
        "render status",
        "metrics",
        "web",
        "commands notebook",
        "cli",
    ],
}
PACKAGES = list(FLOORS)
FOLDERS = {package: ROOT / package for package in PACKAGES} | {"common": ROOT / NAME / "common"}
HEIGHTS = {
    (package, room): height
    for package, floors in FLOORS.items()
    for height, rooms in enumerate([*floors, "__init__"])
    for room in rooms.split()
}
FILES = {
    f"{NAME}."
    + ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in FOLDERS.values()
    for path in sorted(folder.rglob("*.py"))
}
FACE = {NAME, f"{NAME}.testing"}
"""The face imports all packages, and none of them imports it."""


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere in it, also where that is only for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in FILES or whole in FACE else str(node.module)


def room_of(module: str) -> tuple[str, str]:
    _, package, *rest = module.split(".")
    room = package, rest[0] if rest else "__init__"
    assert room in HEIGHTS, f"{module} is on no floor of the table"
    return room


# They offer names from anywhere, so no module of the house imports them: it asks where a name lives.
FACES = {f"{NAME}.trident", f"{NAME}.trident.maps"}


@cache
def arrows() -> dict[str, list[str]]:
    """Return the modules of the house that each module imports."""
    return {
        module: sorted({one for one in imports(path) if one in FILES or one in FACE})
        for module, path in FILES.items()
    }


def is_allowed(module: str, imported: str) -> bool:
    if imported in FACE | FACES:
        return False
    if module in FACES:
        return True
    here, there = room_of(module), room_of(imported)
    if here[0] != there[0]:
        return PACKAGES.index(there[0]) < PACKAGES.index(here[0])
    return here == there or HEIGHTS[there] < HEIGHTS[here]


def test_imports_point_down() -> None:
    assert [f"{a} -> {b}" for a, found in arrows().items() for b in found if not is_allowed(a, b)] == []


def test_no_two_modules_import_each_other() -> None:
    # Raises CycleError, which names the circle.
    assert list(
        TopologicalSorter(
            {module: set(found) - {module} for module, found in arrows().items()}
        ).static_order()
    )


def test_every_room_of_the_table_is_there() -> None:
    assert {room for room in HEIGHTS if room[1] != "__init__"} == {room_of(module) for module in FILES} - {
        (package, "__init__") for package in PACKAGES
    }


def test_no_folder_is_a_corridor() -> None:
    folders: dict[Path, int] = {}
    for path in FILES.values():
        folders[path.parent] = folders.get(path.parent, 0) + 1
    assert {str(folder): count for folder, count in folders.items() if count > ROOMS_MOST} == {}


def test_our_packages_are_imported_by_our_name_alone() -> None:
    """A bare name would be whatever else of that name stands on the path: a user's own `tracker.py`."""
    found = []
    bare = re.compile(rf"^ *(?:from|import) (?:{'|'.join(PACKAGES)})\b.*", re.MULTILINE)
    for folder in (*PACKAGES, NAME, "tests", "examples", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            # Such a line may stand in a text; and to parse each of a thousand files takes seconds.
            if bare.search(path.read_text()):
                found += [f"{path}: {one}" for one in imports(path) if one.split(".")[0] in PACKAGES]
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        found += [f"{path}: {line}" for line in bare.findall(path.read_text())]
    assert found == []


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by their names alone, where a folder is no package.
    files = [path for path in (ROOT / "tests").rglob("*.py") if not (path.parent / "__init__.py").exists()]
    counts = Counter(
        path.name for path in files if path.name not in ("conftest.py", "sitecustomize.py", "__main__.py")
    )
    assert [name for name, count in counts.items() if count > 1] == []


# Users catch each of both `FencedError`; Trident's `State` is public, the tracker's is a record's.
TWICE = {"FencedError", "State"}


def test_no_class_name_stands_in_two_modules() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(set(found)) > 1 and name not in TWICE} == {}
