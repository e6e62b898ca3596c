"""Runs a page of the documentation as its reader would: terminal, files and Python, in the order of the page.

`console` blocks are commands with their output; `pycon` blocks go to the session that `python -i` has opened; a
`python` block with a title is a file, any other one is executed here. `UPDATE_GUIDE=1` writes the real output into the
page.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fast_spark

from kinesis_trident.checkpoint.embedded.java import ensure_java
from kinesis_trident.console.cli import main

__all__ = ["Page", "normalised"]

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r'^```(console|pycon|python)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SERVERS = {"kinesis-trident zookeeper": "localhost:2181", "kinesis-trident kinesis": "http://localhost:4566"}
END = "<end of the statement>"
CHANGING = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "<time>"),
    (r"(\w[\w.-]*)(:| pid |, pid )\d{2,}\b", "<process>"),
    (r"\b\d+(\.\d+)? (ms|s|min)\b|\b(\d+h )?\d+m \d+s\b|\b\d+h \d+m\b", "<duration>"),
    (r"\b\d{40,}\b|\b\d{4}…\d+", "<sequence number>"),
    (r"\b[0-9a-f]{32}\b", "<plan>"),
    (r'("(?:created|listed|seen|arrival|behind_ms|since)":)-?\d+', r"\1<time>"),
    (r'("(?:lag_ms|seen_at|retention_left_ms)":)(\d+|null)', r"\1<time>"),
    (r"(?m)^lag +[^;\n]+; last looked", "lag <lag>; last looked"),
    (r"@\d{13}", "@<created>"),
    (r"\blag=\w+", "lag=<lag>"),
    (r"[─━┏┓└┘┴┬┳╇┡┩+-]{3,}", "<line>"),
    (r"/\S*/out\b", "<folder>/out"),
    (r" +", " "),
    # How long ago somebody looked, and whether a process has ended by now, changes what these say.
    (r"(run: |no run is connected, the last was )epoch (\d+) on <process>(, since <time>)?", r"<run \2>"),
    (r"│ (<duration>|<process>) (?=│)", "│ - "),
    (r"with one of the next micro-batches|once the query is started: it is not running", "<when>"),
)


def normalised(text: str) -> str:
    """Return the text without what differs from run to run: times, processes, folders, the width of columns."""
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


class Session:
    """A Python session that `python -i` has opened."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._log = (folder / "session.log").open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-u", *command[1:]],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def say(self, statement: str) -> str:
        """Return what a statement prints; a session that it kills says so as a shell does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement}\n\nprint({END!r})\n")
        self._process.stdin.flush()
        printed = ""
        for line in self._process.stdout:
            if line.rstrip("\n") == END:
                return printed
            printed += line
        return printed + ("Killed\n" if self._process.wait() == -9 else f"exit {self._process.returncode}\n")

    def close(self) -> None:
        """End the session, as Ctrl-D does."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._log.close()


class Page:
    """A page, and the machine of its reader: a folder, servers, an environment and a Python session."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        names: dict[str, Any] | None = None,
        ours: Mapping[str, str] | None = None,
        kinds: Collection[str] = ("console", "pycon", "python"),
    ) -> None:
        """`names` are those that the page's Python finds, `ours` what stands for the page's servers and folders.

        Blocks of other `kinds` are left out.
        """
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self._folder = folder
        self._names = names
        self._kinds = kinds
        self._ours_for = dict(ours or {})
        self._exported = {"COLUMNS": "200"}
        self._session: Session | None = None
        self._stack = ExitStack()
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **fast_spark.environment(),
            "JAVA_HOME": str(ensure_java()),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(fast_spark.WORKERS)]),
            "PYTHONWARNINGS": "ignore",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self._stack.enter_context(fast_spark.warm_python()),
        }

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session:
            self._session.close()
        self._stack.close()

    def steps(self) -> Iterator[tuple[str, str, str]]:
        """Do what the page says; yield each statement or command with the output of the page and the real one."""
        for kind, title, body in BLOCK.findall(self.text):
            if kind not in self._kinds:
                continue
            if title:
                (self._folder / title).write_text(self._ours(body))
            elif kind == "console":
                yield from self._do(body, r"^\$ ((?:.*\\\n)*.*\n)", self._command)
            elif kind == "python":
                exec(compile(self._ours(body), str(self.path), "exec"), self._names)
            elif kind == "pycon":
                yield from self._do(body, r"^>>> (.*\n(?:\.\.\. ?.*\n)*)", self._statement)

    def check(self) -> None:
        """Do what the page says, and compare the output; with `UPDATE_GUIDE=1` write what differs into the page."""
        text, position, differs = self.text, 0, []
        for said, shown, printed in self.steps():
            before = text.index(said, position) + len(said)
            position = before + len(shown)
            if normalised(shown) == normalised(printed):
                # A slow machine's times and other processes are no change of the page.
                continue
            if os.environ.get("UPDATE_GUIDE"):
                text = text[:before] + printed + text[position:]
                position = before + len(printed)
                self.path.write_text(text, encoding="utf-8")
            else:
                differs.append(f"{said}--- the page:\n{shown}--- really:\n{printed}")
        assert not differs, "\n".join(differs)

    def _do(self, body: str, prompt: str, run: Callable[[str], str]) -> Iterator[tuple[str, str, str]]:
        starts = list(re.finditer(prompt, body, re.MULTILINE))
        assert starts
        for found, following in zip(starts, [*starts[1:], None], strict=True):
            shown = body[found.end() : following.start() if following else len(body)]
            printed = self._theirs(run(self._ours(found[1])))
            yield found[1], shown, re.sub(r"[ \t]+$", "", printed, flags=re.MULTILINE)

    def _command(self, line: str) -> str:
        words = shlex.split(line.replace("\\\n", ""), comments=True)
        if words[0] == "export":
            self._exported |= dict(word.split("=", 1) for word in words[1:])
            self._environment |= self._exported
            return ""
        if " ".join(words) in SERVERS:
            return self._server(" ".join(words))
        if words[:2] == ["python", "-i"]:
            if self._session:
                self._session.close()
            self._session = Session(words, self._folder, self._environment)
            return self._session.say("")
        if words[0] == "kinesis-trident":
            return self._console(words[1:])
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def _console(self, arguments: list[str]) -> str:
        printed = io.StringIO()
        with (
            patch.dict(os.environ, self._exported),
            redirect_stdout(printed),
            redirect_stderr(printed),
            suppress(SystemExit),
        ):
            # In this process: each of its own would take seconds to import what it needs.
            main(arguments)
        return printed.getvalue()

    def _statement(self, lines: str) -> str:
        assert self._session, "no python -i so far"
        return self._session.say(re.sub(r"^\.\.\. ?", "", lines, flags=re.MULTILINE))

    def _server(self, command: str) -> str:
        process = self._stack.enter_context(
            subprocess.Popen(
                [*shlex.split(command), "--port", "0"],
                env=self._environment,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self._stack.callback(process.terminate)
        assert process.stdout is not None
        printed = process.stdout.readline()
        (address,) = re.findall(r" at (\S+);", printed)
        self._ours_for[SERVERS[command]] = address
        return printed

    def _ours(self, text: str) -> str:
        for page, real in self._ours_for.items():
            text = text.replace(page, real)
        return text

    def _theirs(self, text: str) -> str:
        for page, real in self._ours_for.items():
            text = text.replace(real, page)
        return text.replace(str(self._folder), "/home/you/tutorial")
