"""A notebook, as Jupyter would run it: its code cells in their order, in one namespace, with what each one shows.

nbclient would need a kernel, and a Spark of its own; here the cells run in the process of the test.
"""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Notebook"]


@dataclass
class Notebook:
    """A notebook of format 4.5."""

    path: Path

    def __post_init__(self) -> None:
        self.document = json.loads(self.path.read_text(encoding="utf-8"))
        assert (self.document["nbformat"], self.document["nbformat_minor"]) == (4, 5)

    @property
    def code(self) -> list[dict[str, Any]]:
        """The code cells."""
        return [cell for cell in self.document["cells"] if cell["cell_type"] == "code"]

    def run(self) -> list[list[dict[str, Any]]]:
        """Run the code cells, and return the outputs of each."""
        names: dict[str, Any] = {"__name__": "__main__"}
        return [
            _run("".join(cell["source"]), count, f"{self.path.name}, cell {cell['id']}", names)
            for count, cell in enumerate(self.code, 1)
        ]

    def write(self, outputs: list[list[dict[str, Any]]]) -> None:
        """Put outputs into the notebook's file."""
        for count, (cell, shown) in enumerate(zip(self.code, outputs, strict=True), 1):
            cell |= {"execution_count": count, "outputs": shown}
        text = json.dumps(self.document, indent=1, ensure_ascii=False, sort_keys=True)
        self.path.write_text(text + "\n", encoding="utf-8")


def _run(source: str, count: int, place: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell: what it prints, and the value of its last line unless that is None."""
    statements = ast.parse(source, place)
    last = statements.body.pop() if isinstance(statements.body[-1], ast.Expr) else None
    value = None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(statements, place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append(
            {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": shown}
        )
    return outputs
