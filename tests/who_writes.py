"""Who writes which node, who changes the state of shards, and where due times are computed: read from the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kinesis_trident.checkpoint.model.home import HOME
from kinesis_trident.checkpoint.store.source_store import SourceStore

ROOT = Path(__file__).resolve().parent.parent
FOR_TESTS = ("spout/query_by_hand.py", "spout/testing/", "bolt/testing/", "trident/testing/")
PROCESSES = {
    "bolt/tracking/carriers.py": "tasks",
    "bolt/": "driver",
    "checkpoint/store/source_home.py": "planning process",
    "console/": "console",
    "spout/acks.py": "your process",
    "spout/graceful_stop.py": "driver",
    "spout/planner/": "planning process",
    "spout/reader/": "tasks",
}
UNFENCED = tuple(dict.fromkeys(method for spec in HOME for method in spec.unfenced))
OTHERWISE = ("epochs.raise_epoch", "status.tell")
"""The writes that make an epoch, or have it in their node: the others are given it."""
READS = ("epochs.check_epoch", "epochs.watch_epoch")
"""The methods that are given an epoch and write nothing."""


@cache
def calls_of() -> dict[str, list[ast.Call]]:
    """Return the calls in each module."""
    return {
        module: [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for folder in ("spout", "tracker", "checkpoint", "bolt", "trident", "console")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (module := str(path.relative_to(ROOT))).startswith(FOR_TESTS)
    }


def calls(matches: Callable[[ast.Call], str | None]) -> dict[str, list[str]]:
    """Return where each thing is called that `matches` names."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, made in calls_of().items():
        for call in made:
            if name := matches(call):
                found[name].add(module)
    return {name: sorted(where) for name, where in sorted(found.items())}


def writers() -> list[tuple[str, ...]]:
    """Return a row for each method that writes nodes: first those that check no epoch."""
    scope = inspect.getmodule(SourceStore).__dict__
    kinds = re.findall(r"self\.(\w+) = (\w+)\(nodes", inspect.getsource(SourceStore.__init__))
    writing = {
        f"{area}.{name}"
        for area, kind in kinds
        for name, method in inspect.getmembers(scope[kind], inspect.isfunction)
        if name[0] != "_" and "epoch" in inspect.signature(method).parameters
    }
    writing = writing.union(UNFENCED, OTHERWISE).difference(READS)

    def matches(call: ast.Call) -> str | None:
        match call.func:
            case ast.Attribute(ast.Attribute(_, area), method) if f"{area}.{method}" in writing:
                return f"{area}.{method}"
        return None

    found = calls(matches)
    return [
        (f"`{name}`", ", ".join(dict.fromkeys(map(process_of, found[name]))), quoted(found[name]))
        for name in (*UNFENCED, *(one for one in found if one not in UNFENCED))
    ]


def callers(*names: str, within: str = "") -> list[tuple[str, ...]]:
    """Return a row for each of some functions, with the modules that call them; `within`: those of a folder."""

    def matches(call: ast.Call) -> str | None:
        match call.func:
            case ast.Name(name) | ast.Attribute(_, name) if name in names:
                return name
        return None

    found = {name: [one for one in where if one.startswith(within)] for name, where in calls(matches).items()}
    return [(f"`{name}`", quoted(where)) for name, where in found.items()]


RECORDED = {
    "files of failures that no retry can mend": re.compile(
        r"\b(RecordFailure|PermanentFailure|RetryLater|DelayError|seconds_of|after_s|without_retry|gives_up|no_retry|"
        r"no_retry_for|noRetryFor|max_record_age|maxRecordAge|delay_asked|leave_out_aged|kind_in|def reasons|"
        r"status\.failed|tag\.judge)\b|_watch\.judge\b"
    ),
}
"""The names that a recorded change has brought: the files that have one are those that it has touched."""


def touched_by(change: str) -> list[tuple[str, ...]]:
    """Return a row for each folder of the product, with the files that a recorded change has touched in it."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in ("tracker", "spout", "bolt", "trident", "console", "kinesis_trident"):
        for path in sorted((ROOT / folder).rglob("*")):
            module = str(path.relative_to(ROOT))
            is_product = path.suffix in (".py", ".html") and not module.startswith(FOR_TESTS)
            if is_product and RECORDED[change].search(path.read_text()):
                found[folder].append(module)
    return [(f"`{folder}/`", str(len(files)), quoted(files)) for folder, files in found.items()]


def process_of(module: str) -> str:
    return next(who for folder, who in PROCESSES.items() if module.startswith(folder))


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
