"""Every state that the protocol can reach within small bounds, and the story of each rule."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from doc_tables import PROTOCOL_PAGE, STORIES_PAGE
from thorough import cases

from spec.bounds import Bounds
from spec.figures import LONG, REACHED, WORLDS, explore, worlds_table
from spec.page import draw, drawings_in, drawn_stories, render, render_stories
from spec.rules import RULES
from spec.search import search
from spec.stories import DOCUMENTED, STORIES, Story
from spec.told import seek, tell

STATES_AND_STEPS = ("values", "bounds", "planning", "working", "settling", "protocol")


@pytest.mark.parametrize("name", cases(*REACHED, long=tuple(LONG)))
def test_every_state_keeps_the_promises(name: str) -> None:
    found = explore(name)
    assert not found.broken, str(found)
    assert found.is_complete
    assert found.states == WORLDS[name][1]


def test_a_transactional_batch_that_is_read_anew_differs_without_its_pins() -> None:
    """As `DIFFERS` and `ALONE` are asked of these worlds alone, they have no story among the rules."""
    bounds = Bounds(starts=3, transactional=True).dropping(frozenset({"pin"}))
    assert search(bounds, kinds=("DIFFERS",)).broken


def test_states_and_steps_are_short() -> None:
    """They can be read at once: 600 lines of code, besides comments and docstrings."""
    assert sum(map(count_lines, STATES_AND_STEPS)) <= 600


def count_lines(name: str) -> int:
    """Return the number of lines of a module's code."""
    text = Path(__file__).with_name(f"{name}.py").read_text()
    docs = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in docs for number, line in lines)


def test_the_table_of_worlds_is_on_its_page() -> None:
    written = worlds_table([""] * len(WORLDS))
    seconds = [line.split("|")[-2].strip() for line in written.read().splitlines()[2:]]
    assert all(float(took) > 0 for took in seconds)
    assert worlds_table(seconds).render() == written.read()


@pytest.mark.parametrize("story", [one for one in (*STORIES, *DOCUMENTED) if one.broken], ids=str)
def test_each_rule_has_its_story(story: Story) -> None:
    found = tell(story)
    assert found.broken.partition(":")[0] == story.broken, str(found)
    assert len(found.story) == story.steps, str(found)
    assert drawings_in(STORIES_PAGE.read())[story] == draw(found)


@pytest.mark.long
@pytest.mark.parametrize("story", [*STORIES, *DOCUMENTED], ids=str)
def test_a_search_finds_no_shorter_story(story: Story) -> None:
    """Each is told by the test above; what breaks nothing alone breaks something with the rule behind it."""
    found = seek(story)
    assert found.broken.partition(":")[0] == story.broken, str(found)
    assert len(found.story) == story.steps, str(found)
    assert found.story == tell(story).story if story.broken else found.is_complete


def test_the_page_has_each_rule_with_its_story() -> None:
    assert PROTOCOL_PAGE.read() == render()
    page = STORIES_PAGE.read()
    drawings = drawings_in(page)
    assert page == render_stories(lambda story: drawings[story])
    assert {*drawn_stories()} == {one for one in (*STORIES, *DOCUMENTED) if one.broken}


def test_something_is_broken_without_each_rule() -> None:
    assert {rule for story in STORIES if story.broken for rule in story.rules} == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_the_place_of_each_rule_exists(rule: str) -> None:
    assert all(map(callable, RULES[rule].resolve())) or rule == "follow"
