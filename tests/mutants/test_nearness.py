"""Which tests are near an error: those that execute its line, the quickest first."""

from __future__ import annotations

from mutants.nearness import FileOfTests, choose_tests, digest_of
from mutants.planting import Mutant

NEAR = {
    "tests/a.py": FileOfTests(
        seconds={"a::slow": 9.0, "a::quick[1]": 0.1, "a::quick[2]": 0.1, "a::quick[3]": 0.1},
        lines={
            "tracker/pace.py": {5: ["a::quick[1]", "a::quick[2]", "a::quick[3]", "a::slow"], 6: ["a::slow"]}
        },
    ),
    "tests/b.py": FileOfTests(
        seconds={"b::other": 2.0, "b::idle": 0.0},
        lines={"tracker/pace.py": {5: ["b::other"]}, "tracker/ids.py": {5: ["b::idle"]}},
    ),
}


def near(line: int, begins: int, seconds: float = 100.0) -> list[str]:
    return [*choose_tests(Mutant("tracker/pace.py", line, "", "", begins), NEAR, seconds)]


def test_the_tests_that_execute_a_line_come_the_quickest_first_and_one_case_of_each_before_all() -> None:
    assert near(5, 5) == ["a::quick[1]", "b::other", "a::slow", "a::quick[2]", "a::quick[3]"]
    assert near(6, 6) == ["a::slow"]


def test_they_end_where_their_time_is_over() -> None:
    assert near(5, 5, seconds=3.0) == ["a::quick[1]", "b::other"]


def test_a_line_of_a_longer_statement_is_executed_with_its_statement() -> None:
    assert near(7, 6) == ["a::slow"]


def test_a_line_that_no_test_executes_has_none() -> None:
    assert near(8, 8) == []


def test_a_line_of_the_module_itself_has_the_tests_that_execute_most_of_the_module() -> None:
    assert near(1, 0) == ["a::slow", "a::quick[1]", "b::other", "a::quick[2]", "a::quick[3]"]


def test_tests_are_collected_again_where_they_or_the_core_have_changed() -> None:
    digests = {digest_of("test", {"a": "1"}), digest_of("test", {"a": "2"}), digest_of("other", {"a": "1"})}
    assert len(digests) == 3
    assert digest_of("test", {"b": "2", "a": "1"}) == digest_of("test", {"a": "1", "b": "2"})
