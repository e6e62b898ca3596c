"""The code blocks of the pages, and checks of those that are not run: commands, names, options, forms."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import botocore.session
import typer.main
import yaml
from botocore import xform_name

from kinesis_trident.console.cli import app
from kinesis_trident.spout.options import sink, source

__all__ = [
    "PAGES",
    "ROOT",
    "Block",
    "blocks_of",
    "check_commands",
    "check_json",
    "check_python",
    "check_yaml",
    "with_ours",
]

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    path.name: path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").glob("*.md"),
    )
}
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OPTIONS = {
    name.lower()
    for table in (source.TABLE, sink.TABLE)
    for option in table
    for name in (option.key, *option.aliases)
}
SHELL = {".", "curl", "export", "java", "spark-pipelines", "spark-submit", "venv-pack", "zkCli.sh"}
"""Programs of others, of which only the shell's grammar is checked."""
PROGRAMS = SHELL | {"aws", "docker", "kinesis-trident", "make", "pip", "python", "python3"}


def with_ours(text: str, ours: Mapping[str, str]) -> str:
    """Return a page's text with a test's words in place of those of the page, each of which it must have."""
    for theirs, mine in ours.items():
        assert theirs in text, theirs
        text = text.replace(theirs, mine)
    return text


@dataclass(frozen=True)
class Block:
    """A block of code: `kind` is the word after the fence, or empty for one that is only indented."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands: the lines after a `$`, each with those that continue it; all lines of a block without one."""
        typed = re.findall(r"^\$ ((?:.*\\\n)*.*)$", self.text, re.MULTILINE)
        if typed or self.kind not in {"", "sh"}:
            return typed
        lines = [line for line in re.sub(r"\\\n *", " ", self.text).splitlines() if line.strip()]
        return lines if _program(lines[0].split()) in PROGRAMS else []


def blocks_of(path: Path) -> Iterator[Block]:
    """The blocks of a page in their order; diagrams are none."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        begin, fence = number, re.match(r"```(\S*)", lines[number])
        if fence:
            number = lines.index("```", number + 1)
            if fence[1] != "mermaid":
                yield Block(path.name, begin + 1, fence[1], "\n".join(lines[begin + 1 : number]))
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            text = textwrap.dedent("\n".join(lines[begin:number])).rstrip()
            yield Block(path.name, begin + 1, "", text)
            continue
        number += 1


def check_commands(block: Block) -> None:
    """Each command can be typed: the program has the command and its options; what it names is there."""
    assert block.commands, f"{block}: no commands"
    for path in re.findall(r"\btests/[\w/]+\.py", block.text):
        assert (ROOT / path).exists(), f"{block}: {path}"
    for command in block.commands:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
        for part in _split(words):
            _check_words(part, f"{block}: {command}")


def _split(words: list[str]) -> Iterator[list[str]]:
    """The commands between `&&`."""
    while "&&" in words:
        yield words[: words.index("&&")]
        words = words[words.index("&&") + 1 :]
    yield words


def _program(words: list[str]) -> str:
    """The program of a command, behind the variables that are set for it."""
    return next((word.rpartition("/")[2] for word in words if not re.match(r"[A-Z_]+=", word)), "")


def _check_words(words: list[str], place: str) -> None:
    name = _program(words)
    rest = words[[word.rpartition("/")[2] for word in words].index(name) + 1 :]
    if name == "kinesis-trident":
        _check_command_line(rest, place)
    elif name == "make":
        assert {word for word in rest if "=" not in word} <= TARGETS, place
        for path in re.findall(r"tests/[\w/.]*", " ".join(rest)):
            assert (ROOT / path).exists(), f"{place}: {path}"
    elif name == "pip":
        for extras in re.findall(r"\[([\w,]+)\]", " ".join(rest)):
            assert set(extras.split(",")) <= EXTRAS, place
    elif name in {"python", "python3"}:
        _check_python_program(rest, place)
    elif name == "aws":
        _check_aws(rest, place)
    elif name == "docker":
        services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        assert rest[0] == "compose", place
        assert {word for word in rest[2:] if not word.startswith("-")} <= set(services), place
    else:
        assert name in SHELL, f"{place}: {name} is no program of SHELL"


def _check_command_line(words: list[str], place: str) -> None:
    """The words are a command of the command line with its options and arguments; placeholders are good values."""
    command: Any = typer.main.get_command(app)
    with patch.dict(os.environ, KINESIS_TRIDENT_ZOOKEEPER="zk1:2181"):
        context = command.make_context("kinesis-trident", list(words))
        while hasattr(command, "resolve_command"):
            name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, list(words), parent=context)
    assert context.command is command, place


def _check_python_program(words: list[str], place: str) -> None:
    if words[0] == "-m":
        known = words[1] in {"venv", "pytest", "build", "http.server"}
        assert known or (ROOT / words[1].replace(".", "/")).with_suffix(".py").exists(), place
    elif words[0].startswith("examples/"):
        text = (ROOT / words[0]).read_text() + (ROOT / "examples" / "playground.py").read_text()
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in text] == [], place


@cache
def _service(name: str) -> Any:
    return botocore.session.get_session().get_service_model(name)


def _check_aws(words: list[str], place: str) -> None:
    service, operation, *rest = words
    model = _service(service)
    (called,) = (
        model.operation_model(name) for name in model.operation_names if xform_name(name, "-") == operation
    )
    known = {f"--{xform_name(name, '-')}" for name in called.input_shape.members}
    assert {word for word in rest if word.startswith("--")} <= known, place


def check_python(block: Block) -> None:
    """The code can be parsed, once what it leaves out with `...` is gone, and names options that exist."""
    code = re.sub(r"\.\.\.$|, \.\.\.(?=\))", "", block.text, flags=re.MULTILINE)
    if code.startswith("."):
        code = f"frame{code}"
    tree = ast.parse(code, str(block))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if named == "option" and isinstance(call.args[0], ast.Constant):
            name = str(call.args[0].value)
            assert name.lower() in OPTIONS | {"basepath", "checkpointlocation"}, (
                f"{block}: there is no option {name}"
            )
        if named == "KinesisSpout":
            names = {one.arg.replace("__", ".") for one in call.keywords if one.arg}
            assert {one.lower() for one in names} <= OPTIONS | {"scheme", "tracking"}, f"{block}: {names}"


def check_json(block: Block) -> None:
    """The documents can be parsed, once what they leave out with `...` is gone."""
    text = re.sub(r",?\s*\.\.\.(?=[,\]}])", "", block.text)
    for document in re.findall(r"^\{.*?\}$(?=\n\n|\n\S|\Z)", text, re.MULTILINE | re.DOTALL):
        json.loads(document)


def check_yaml(block: Block) -> None:
    """The document can be parsed."""
    assert isinstance(yaml.safe_load(block.text), dict)
