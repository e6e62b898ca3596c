"""The page docs/runbook.md against what is printed: its entries, and the words that no two runs have in common.

A scenario is a test with `@entry("<heading of the page>")` and the fixture `night`. `RUNBOOK=write` has the scenarios
write what was printed into the page, in place of comparing it; the words around it are written by hand.
"""

from __future__ import annotations

import ast
import json
import os
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from command_line import Command

__all__ = [
    "PAGE",
    "UNTRIED",
    "UNTRIED_WORDS",
    "Entry",
    "Night",
    "calm",
    "entry",
    "read_page",
    "scenarios",
    "sentences",
    "shortened",
]

PAGE = Path(__file__).parents[2] / "docs" / "runbook.md"
_WIDTH = 110
_SHOWN = 16
"""How many words of what is printed are on the page."""
_SECTION = re.compile(r"^(#{2,3}) ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_CALM: tuple[tuple[str, str], ...] = (
    (r"(epoch \d+,|epoch \d+ on|host|on|\() ?[\w.-]+,? pid \d+", r"\1 worker-7, pid 4711"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?", "2026-07-01T03:12:45Z"),
    (r"(?<=@)\d{13}\b|\b1[6-9]\d{11}\b", "1767225600000"),
    (r"\b(?:[0-9a-f]{8}-)?[0-9a-f]{16,32}\b", "5e3a9c1d"),
    (r"(?<=/consumer/)(\w+):\d+", r"\1:1767225600"),
    (r"\b\d{20,}\b", "49590338271490256608559"),
    (r"0x[0-9a-f]+", "0x7f3a"),
    (r"\b(127\.0\.0\.1|localhost|::1):\d+", "localhost:2181"),
    (r"\bfor (\d+m \d+s|[\d.]+ m?s)\b", "for 1m 04s"),
    (r"(\d+m \d+s|[\d.]+ m?s) ago", "1m 04s ago"),
    # A killed connection is noticed by the query's write or by the read of its answer.
    (r"(?<=during query) \(\[Errno 32\] Broken pipe\)", ""),
    (r"\d+\.\d+ h ago", "26.0 h ago"),
    (r"\b(\d+m) \d\ds old\b", r"\1 00s old"),
    (r"lag of (\d+m) \d\ds has grown by \d+ s", r"lag of \1 00s has grown by 51 s"),
    (r"records expire in (\d+d )?\d+h( \d+m)?", "records expire in 1d 3h"),
    (r"(?<= )\S*/pytest-of-\S*?/\S+?(?=[\s,;:)]|$)", "/mnt/orders"),
)

_DEFECT = "a defect, which no test can make happen in a query"
UNTRIED = {
    "BatchMissingError": _DEFECT,
    "CheckpointError": _DEFECT,
    "CheckpointMovedBackError": _DEFECT,
    "MissingExtraError": "tests install no packages",
    "MissingPackageError": "tests install no packages; make release does, and runs what it installed",
    "NodeTooLargeError": _DEFECT,
    "NotCoveredError": _DEFECT,
    "OrderError": _DEFECT,
    "ShardMissingError": "the query asks Kinesis first, and says something else",
    "UnknownRunError": _DEFECT,
    "WorkerDiedError": "it needs executors with little memory",
}
"""The entries whose ways out no scenario tries, each with the reason."""

_DOCTOR = "tests/console/test_streams_and_doctor.py"
_PATIENCE = "a longer wait is no way out of a test's own"
UNTRIED_WORDS = {
    "AccessDeniedError": {"`kinesis-trident doctor APP` tries each call": _DOCTOR},
    "BatchFailedError": {"With `spout=opaque`": "it is the default"},
    "CheckpointMismatchError": {
        "is refused in any case": "tests/model/test_restores.py",
        "`kinesis-trident rename OLD NEW`": "tests/e2e/test_renaming.py",
    },
    "EOFException": {"`spark.driver.memoryOverhead`": "it needs a container with little memory"},
    "FencedError": {"a new `applicationName` writes beside": "tests/bolt/test_fence.py"},
    "KeyUnusableError": {"A disabled key can be enabled": "it needs AWS KMS"},
    "NotOurSourceError": {"Under Spark Connect": "tests/e2e/test_connect.py"},
    "SchemaRegistryError": {"install the extra `glue`": "tests install no packages"},
    "all-fail": {"With the option `maxFailedShare`": "tests/runbook/test_runbook_spark.py"},
    "TargetAwayError": {"raise its `timeout`": _PATIENCE},
    "SparkException": {"`kinesis-trident doctor`": _DOCTOR},
    "StateMissingError": {"`zookeeper.hosts` and `zookeeper.root`": "it recommends to compare two texts"},
    "StopTimeoutError": {"`query.stop()` ends it at once": "tests/e2e/test_stopping.py"},
    "StoreUnavailableError": {"`requestRetries`": _PATIENCE},
    "ThrottledError": {"`writeTimeout`": _PATIENCE},
    "ZooKeeperAccessError": {"`kinesis-trident doctor APP`": _DOCTOR},
    "ZooKeeperUnavailableError": {"`zookeeper.sessionTimeout`": _PATIENCE},
    "held": {"`messageTimeout`": "tests/bolt/storm/test_held_again.py"},
    "kinesis.Unavailable": {"`readTimeout`": _PATIENCE},
    "not-asked": {"`kinesis_trident.stop(query)`": "tests/e2e/test_stopping.py"},
    "start-fails": {"`kinesis-trident doctor APP`": _DOCTOR},
    "unusable-key": {"`aws kms enable-key`": "it needs AWS KMS"},
    "unavailable": {"`kinesis-trident doctor APP`": _DOCTOR},
}
"""What other entries recommend and their scenarios do not try, in words of the page, with the reason or the test."""

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Entry:
    """An entry of the page.

    Attributes:
        title: its heading.
        part: the heading of the part that it is in.
        printed: what is seen first, of which white space does not count.
        why: the words after it.
        remedy: what to do.
    """

    title: str
    part: str
    printed: str
    why: str
    remedy: str


def entry(title: str) -> Callable[[Function], Function]:
    """Say of a test which entry of the page it makes happen."""

    def mark(function: Function) -> Function:
        function.__dict__["entry"] = title
        return function

    return mark


def sentences(text: str) -> list[str]:
    """The sentences of a remedy, and the parts of those with a semicolon."""
    return re.split(r"(?<=[.:]) (?=[A-Z`])|; ", text)


def scenarios() -> Iterator[tuple[str, list[str]]]:
    """The headings that the tests of this folder make happen, and the words that they try, without importing them."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "entry":
                        tried = [
                            ast.literal_eval(one.args[0])
                            for one in ast.walk(node)
                            if isinstance(one, ast.Call) and ast.unparse(one.func) == "night.tries"
                        ]
                        yield ast.literal_eval(call.args[0]), tried


def read_page(text: str) -> dict[str, Entry]:
    """The entries of the page by their headings."""
    found: dict[str, Entry] = {}
    part = ""
    for level, heading, body in _SECTION.findall(text):
        title = heading.strip("`")
        if level == "##":
            part = title
            continue
        printed = _PRINTED.search(body)
        assert printed is not None, f"{title} of docs/runbook.md has no block of what is printed"
        why, marker, remedy = body[printed.end() :].partition("**Do.**")
        assert marker, f"{title} of docs/runbook.md does not say what to do"
        assert why.strip(), f"{title} of docs/runbook.md does not say why"
        assert title not in found, f"{title} is twice in docs/runbook.md"
        found[title] = Entry(title, part, _squeezed(printed[1]), why.strip(), _squeezed(remedy))
    return found


def calm(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return what is printed, with fixed values in place of names, times, numbers of processes, ports and folders."""
    for name, value in sorted((names or {}).items(), key=lambda one: -len(one[0])):
        text = text.replace(name, value)
    for pattern, value in _CALM:
        text = re.sub(pattern, value, text)
    return text


class Night:
    """One scenario: what it shows is compared with the page, and the ways out that it tries are on it."""

    def __init__(self, title: str, names: dict[str, str]) -> None:
        self.names = names
        self.shown = False
        self.tried = False
        found = read_page(PAGE.read_text(encoding="utf-8")).get(title)
        assert found is not None, f"docs/runbook.md has no entry {title}"
        self._entry = found

    @contextmanager
    def raises(self, kind: type[Exception]) -> Iterator[pytest.ExceptionInfo[Exception]]:
        """The block raises this error, not one of another class, and it is printed as on the page."""
        with pytest.raises(kind) as caught:
            yield caught
        assert caught.type is kind, f"{caught.type} is not {kind}"
        self.shows("".join(traceback.format_exception_only(caught.value)))

    def shows(self, text: str) -> None:
        """The page has this text."""
        seen = calm(text.strip(), self.names)
        self.shown = True
        if os.environ.get("RUNBOOK") == "write":
            _write(self._entry.title, shortened(seen))
            return
        assert shortened(seen) == self._entry.printed, (
            f"docs/runbook.md shows another text under {self._entry.title}. RUNBOOK=write python -m pytest "
            "tests/runbook writes it anew"
        )

    def finds(self, command: Command, application: str, code: str, *limits: str) -> None:
        """`status` has this finding, with its remedy; with limits it is `check` that has it."""
        assert code == self._entry.title
        found = self._finding(command, application, *limits)
        assert found is not None, f"there is no {code}"
        if limits:
            line = command("check", application, *limits)[1]
            # Some seconds may have passed.
            assert calm(found["sentence"]) in calm(line)
            self.shows(line.partition(" | ")[0])
            return
        label = "see" if found["level"] == "note" else "do"
        screen = command("status", application)[1]
        # The page has the sentence; what to do stands there at more length.
        lines = [f"{found['level']:<12}{found['sentence']}", f"{label:<12}{found['remedy']}"]
        for line in lines:
            # Some seconds may have passed.
            assert _squeezed(calm(line)) in _squeezed(calm(screen))
        self.shows(lines[0])

    def is_over(self, command: Command, application: str, *limits: str) -> bool:
        """Tell whether the finding has gone."""
        return self._finding(command, application, *limits) is None

    def _finding(self, command: Command, application: str, *limits: str) -> dict[str, Any] | None:
        (line,) = command("check", application, *limits, "--json")[1].splitlines()
        findings = json.loads(line)["findings"]
        return next((one for one in findings if one["code"] == self._entry.title), None)

    def tries(self, words: str) -> None:
        """Say which words of "What to do" the scenario carries out from here on."""
        assert _squeezed(words) in self._entry.remedy, f"{self._entry.title} does not recommend {words!r}"
        self.tried = True


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def shortened(text: str) -> str:
    """Return the first words of a text, by which it is found."""
    words = text.split()
    return " ".join(words[:_SHOWN] + ["..."] * (len(words) > _SHOWN))


def _write(title: str, printed: str) -> None:
    lines = textwrap.wrap(printed, _WIDTH, break_long_words=False, break_on_hyphens=False)
    block = "```text\n" + "\n".join(lines) + "\n```\n"
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(^### `?{re.escape(title)}`?\n\n)```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
    written, count = pattern.subn(lambda found: found[1] + block, text)
    assert count == 1, title
    PAGE.write_text(written, encoding="utf-8")
