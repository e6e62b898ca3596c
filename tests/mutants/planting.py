"""The errors of one line that a module has room for, and those that a seed draws.

An error is drawn by its text, not by its place: the same seed draws the same errors after a change elsewhere.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

import msgspec

__all__ = ["Mutant", "drawn", "mutants_of", "planted"]

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_GREAT = 10
_SAID = {"debug", "info"}
"""What is only logged decides nothing."""


class Mutant(msgspec.Struct, frozen=True, order=True):
    """One line of a file, and what stands there instead; both without the indentation."""

    path: str
    line: int
    """From 1 on."""
    before: str
    after: str
    begins: int
    """The first line of its statement; 0 for one that is executed when the module is imported."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


class _Edit(msgspec.Struct, frozen=True):
    """The bytes of one line from `begin` to `end` become others."""

    line: int
    begin: int
    end: int
    text: str


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return each error of one line that a module has room for; some Python cannot read."""
    lines = text.encode().split(b"\n")
    found: dict[Mutant, None] = {}
    for begins, edit in _statements(ast.parse(text).body, lines, is_called=False):
        line = lines[edit.line - 1]
        changed = line[: edit.begin] + edit.text.encode() + line[edit.end :]
        mutant = Mutant(path, edit.line, line.decode().strip(), changed.decode().strip(), begins)
        found[mutant] = None
    return [*found]


def planted(text: str, mutant: Mutant) -> str:
    """Return the text of a module with an error in it.

    Raises:
        ValueError: the line is another one by now.
    """
    lines = text.split("\n")
    line = lines[mutant.line - 1]
    if line.strip() != mutant.before:
        msg = f"{mutant.path}:{mutant.line} is not {mutant.before!r}"
        raise ValueError(msg)
    lines[mutant.line - 1] = line[: len(line) - len(line.lstrip())] + mutant.after
    return "\n".join(lines)


def drawn(seed: int, count: int, sources: Mapping[str, str]) -> list[Mutant]:
    """Return `count` errors that Python can read, or all, as a seed draws them from the texts of modules by path."""
    times: Counter[tuple[str, str, str]] = Counter()
    order = []
    for mutant in sorted(one for path, text in sources.items() for one in mutants_of(path, text)):
        what = (mutant.path, mutant.before, mutant.after)
        times[what] += 1
        digest = hashlib.blake2b(repr((seed, *what, times[what])).encode()).digest()
        order.append((digest, mutant))
    readable = (one for _, one in sorted(order) if _is_python(planted(sources[one.path], one)))
    return [*islice(readable, count)]


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _statements(
    body: Sequence[ast.stmt], lines: Sequence[bytes], *, is_called: bool
) -> Iterator[tuple[int, _Edit]]:
    """Yield the edits of statements, each with where it begins: those of functions are called."""
    for statement in body:
        if _decides_nothing(statement):
            continue
        begins = statement.lineno * is_called
        for edit in _left_out(statement):
            yield begins, edit
        for edit in _changed(statement, lines):
            yield begins, edit
        inside = is_called or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        for field, value in ast.iter_fields(statement):
            # Annotations, decorators and bases say what a thing is: type checkers hold them.
            if field in {"annotation", "returns", "decorator_list", "bases", "keywords", "type_params"}:
                continue
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, ast.stmt):
                    yield from _statements([one], lines, is_called=inside)
                elif isinstance(one, ast.ExceptHandler | ast.match_case):
                    yield from _statements(one.body, lines, is_called=inside)
                elif isinstance(one, ast.AST):
                    for edit in _expressions(one, lines):
                        yield begins, edit


def _decides_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__all__" | "msg")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return name in _SAID
    return False


def _left_out(statement: ast.stmt) -> Iterator[_Edit]:
    """Yield the edit that leaves a statement of one line out, or that leaves a loop in another way."""
    if statement.end_lineno != statement.lineno:
        return
    assert statement.end_col_offset is not None
    text = ""
    match statement:
        case (
            ast.Expr(value=ast.Call() | ast.Yield() | ast.Await())
            | ast.AugAssign()
            | ast.Raise()
            | ast.Delete()
        ):
            text = "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            text = "pass"
        case ast.Continue():
            text = "break"
        case ast.Break():
            text = "continue"
    if text:
        yield _Edit(statement.lineno, statement.col_offset, statement.end_col_offset, text)


def _changed(statement: ast.stmt, lines: Sequence[bytes]) -> Iterator[_Edit]:
    """Yield the edits of what a statement does with its expressions."""
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            yield from _negated(test, lines)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _COMPUTED:
            operator, other = _COMPUTED[type(op)]
            yield from _between(target, value, f"{operator}=", f"{other}=", lines)


def _expressions(node: ast.AST, lines: Sequence[bytes]) -> Iterator[_Edit]:
    """Yield the edits in an expression."""
    # Annotations of parameters hold nothing; in a formatted text Python 3.11 does not know where an expression stands.
    if isinstance(node, ast.JoinedStr | ast.arg):
        return
    yield from _edits(node, lines)
    for one in ast.iter_child_nodes(node):
        yield from _expressions(one, lines)


def _edits(node: ast.AST, lines: Sequence[bytes]) -> Iterator[_Edit]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for before, operator, after in zip([left, *comparators], ops, comparators, strict=False):
                yield from _between(before, after, *_COMPARED[type(operator)], lines)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_type(right):
            yield from _between(left, right, *_COMPUTED[type(op)], lines)
        case ast.BoolOp(op=op, values=values):
            swapped = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for before, after in pairwise(values):
                yield from _between(before, after, *swapped, lines)
        case ast.UnaryOp(op=ast.Not()):
            yield _Edit(node.lineno, node.col_offset, node.col_offset + len("not "), "")
        case ast.Constant(value=bool() as value, end_col_offset=int() as end):
            yield _Edit(node.lineno, node.col_offset, end, str(not value))
        case ast.Constant(value=int() as value, end_col_offset=int() as end):
            # One more than a great number is nothing that anybody says or sees.
            yield _Edit(node.lineno, node.col_offset, end, str(value + 1 if value < _GREAT else 10 * value))
        case ast.Call(func=ast.Name(id=name, end_col_offset=int() as end)) if name in _CALLED:
            yield _Edit(node.lineno, node.col_offset, end, _CALLED[name])
        case ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
            yield from _negated(test, lines)


def _is_type(value: ast.expr) -> bool:
    """Return whether a name is one of a type, as in a union of them."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name[:1].isupper() and not name.isupper()
    return False


def _negated(test: ast.expr, lines: Sequence[bytes]) -> Iterator[_Edit]:
    """Yield the edit that negates a condition, but for those that have an edit of their own."""
    if (
        isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr)
        and test.lineno == test.end_lineno
    ):
        assert test.end_col_offset is not None
        text = lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
        yield _Edit(test.lineno, test.col_offset, test.end_col_offset, f"(not ({text}))")


def _between(
    before: ast.expr, after: ast.expr, operator: str, other: str, lines: Sequence[bytes]
) -> Iterator[_Edit]:
    """Yield the edit of an operator that stands on the line of what is before it or after it."""
    for line in {before.end_lineno, after.lineno}:
        assert line is not None
        text = lines[line - 1]
        begin = before.end_col_offset if line == before.end_lineno else 0
        end = after.col_offset if line == after.lineno else len(text)
        assert begin is not None
        if (at := text.find(operator.encode(), begin, end)) >= 0:
            yield _Edit(line, at, at + len(operator), other)
            return
