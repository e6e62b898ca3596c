"""Errors of one line: which there are, that each is one, and which a seed draws."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from mutants.nearness import sources_of
from mutants.planting import drawn, mutants_of, planted

ROOT = Path(__file__).resolve().parents[2]

MODULE = '''\
"""Says 1 < 2 and nothing else."""

from __future__ import annotations

import logging

MOST = 3


class Pace:
    """Counts to 4."""

    many: int = 5

    def next(self, given: int = 6) -> int | None:
        """Return one more, or 7."""
        logging.info("given %d", given + 8)
        msg = "not " + str(given)
        if given is None:
            raise ValueError(msg)
        self.many = max(self.many, given)
        for one in range(given):
            if self and not one:
                continue
        return given if given not in (MOST, self.many) else f"{given + 9}"
'''


def errors(text: str) -> list[tuple[int, int, str]]:
    return [(one.line, one.begins, one.after) for one in mutants_of("pace.py", text)]


def test_a_module_has_these_errors() -> None:
    assert errors(MODULE) == [
        (7, 0, "MOST = 4"),
        (13, 0, "many: int = 6"),
        (15, 0, "def next(self, given: int = 7) -> int | None:"),
        (19, 19, "if given is not None:"),
        (20, 20, "pass"),
        (21, 21, "pass"),
        (21, 21, "self.many = min(self.many, given)"),
        (23, 23, "if self or not one:"),
        (23, 23, "if self and one:"),
        (24, 24, "break"),
        (25, 25, 'return given if given in (MOST, self.many) else f"{given + 9}"'),
    ]


@pytest.mark.parametrize(
    ("line", "errors_of_it"),
    [
        ("x = a <= b", ["x = a < b"]),
        ("x = a - b * c", ["x = a + b * c", "x = a - b // c"]),
        ("x = (a) and (b) and c", ["x = (a) or (b) and c", "x = (a) and (b) or c"]),
        ("x = not (a or b)", ["x = (a or b)", "x = not (a and b)"]),
        ("x = 'é' in a, b > 0", ["x = 'é' not in a, b > 0", "x = 'é' in a, b >= 0", "x = 'é' in a, b > 1"]),
        ("x = [a for a in b if a.c]", ["x = [a for a in b if (not (a.c))]"]),
        ("x = One | Two", []),
        ("x = True", ["x = False"]),
        ("x = 10", ["x = 100"]),
        ("x = f'{a + 1}'", []),
        (
            "while a: b += 1",
            ["while (not (a)): b += 1", "while a: pass", "while a: b -= 1", "while a: b += 2"],
        ),
    ],
)
def test_the_errors_of_a_line(line: str, errors_of_it: list[str]) -> None:
    assert sorted(after for _, _, after in errors(line)) == sorted(errors_of_it)


def test_an_operator_may_stand_at_the_end_or_the_beginning_of_a_line() -> None:
    assert errors("x = (\n    a <\n    b\n    and c\n)") == [(4, 0, "or c"), (2, 0, "a <=")]


def test_an_error_is_planted_in_its_line_alone() -> None:
    (error,) = [one for one in mutants_of("pace.py", MODULE) if one.after == "break"]
    changed = planted(MODULE, error)
    assert changed == MODULE.replace("                continue\n", "                break\n")
    with pytest.raises(ValueError, match="24 is not 'continue'"):
        planted(changed, error)


def test_a_seed_draws_the_same_errors_after_a_change_elsewhere() -> None:
    before = drawn(7, 5, {"pace.py": MODULE})
    moved = MODULE.replace("MOST = 3\n", "MOST = 3\nLEAST = MOST\n")
    after = drawn(7, 5, {"pace.py": moved})
    assert [one.after for one in after] == [one.after for one in before]
    assert drawn(8, 5, {"pace.py": MODULE}) != before
    assert len(drawn(7, 1000, {"pace.py": MODULE})) == len(errors(MODULE))


def test_what_is_drawn_of_the_core_is_python_and_another_program() -> None:
    sources = sources_of(ROOT)
    for error in drawn(1, 50, sources):
        text = sources[error.path]
        assert ast.dump(ast.parse(planted(text, error))) != ast.dump(ast.parse(text)), error


def test_each_error_that_is_none_stands_in_the_core_and_says_why() -> None:
    """One whose line was changed since has to be looked at again."""
    errors = (one for path, text in sources_of(ROOT).items() for one in mutants_of(path, text))
    known = {(one.path, one.before, one.after) for one in errors}
    for one in tomllib.loads(Path(__file__).with_name("equal.toml").read_text())["equal"]:
        assert (one["path"], one["before"], one["after"]) in known, one
        assert len(one["why"].split()) > 4, one
