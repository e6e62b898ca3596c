"""The stories of the specification, played on the real code: it takes each step that the rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from model.story import Told

from kinesis_trident.checkpoint.store.epochs import Epochs
from spec.bounds import Bounds
from spec.follow import RefusedError, follow
from spec.planted import RARE, Planted
from spec.playing import Playing
from spec.seen import Event, watching
from spec.stories import DOCUMENTED, STORIES, Story
from spec.told import tell
from spec.wide import Wide

_MANY = 10**6

TOLD = [story for story in STORIES if story.broken]


@pytest.fixture
def events() -> Iterator[list[Event]]:
    with watching() as found:
        yield found


def allowed(story: Sequence[str], bounds: Bounds) -> int:
    """Return how many steps of a story there are with all rules."""
    protocol = Wide(bounds)
    states = {protocol.start()}
    for number, step in enumerate(story):
        states = {after for s in states for name, after in protocol.steps(s) if name == step}
        if not states:
            return number
    return len(story)


def followed(playing: Playing, events: list[Event], bounds: Bounds) -> int:
    """Follow what the code did with all rules; return the number of steps."""
    leaves_out = _MANY if bounds.leaves_out else 0
    open_ended = replace(bounds, starts=_MANY, txids=_MANY, leaves_out=leaves_out, merged=False)
    return follow(Told("a story", 0, playing.world), events, open_ended)


def misses(playing: Playing) -> dict[int, int]:
    """Return the records that are not once in the sink or in the dead letters, with how often."""
    counts = playing.world.sink.counts() + playing.world.dead_letters()
    return {number: counts[number] for number in playing.world.records if counts[number] != 1}


@pytest.mark.parametrize("story", TOLD, ids=str)
def test_the_code_goes_along_with_a_story_as_far_as_the_rules(
    story: Story, events: list[Event], tmp_path: Path
) -> None:
    steps = tell(story).story
    playing = Playing(steps, story.bounds, events, tmp_path)
    playing.play()
    assert set(range(allowed(steps, story.bounds))) <= playing.steps
    assert playing.drain() is None
    assert followed(playing, events, story.bounds) > len(playing.steps) // 2
    assert not playing.world.violations
    # A new Spark checkpoint after a restore: at least once.
    assert misses(playing) == ({1: 2} if story.without == "past" else {})


@pytest.mark.parametrize("story", DOCUMENTED, ids=str)
def test_what_is_not_promised_happens_on_the_code(story: Story, events: list[Event], tmp_path: Path) -> None:
    steps = tell(story).story
    playing = Playing(steps, story.bounds, events, tmp_path)
    playing.play()
    assert playing.steps == set(range(len(steps)))
    assert playing.drain() is None
    assert followed(playing, events, story.bounds) > len(playing.steps) // 2
    assert misses(playing) == {1: 0 if story.broken == "LOST" else 2}


@pytest.mark.parametrize("planted", RARE, ids=str)
def test_an_error_that_no_schedule_comes_to_is_refused_in_its_story(
    monkeypatch: pytest.MonkeyPatch, planted: Planted, events: list[Event], tmp_path: Path
) -> None:
    planted.plant(monkeypatch)
    (story,) = (one for one in TOLD if one.without == planted.family)
    steps = tell(story).story
    playing = Playing(steps, story.bounds, events, tmp_path)
    playing.play()
    assert playing.steps == set(range(len(steps)))
    playing.drain()
    # A folder has the rows of the newest run, also of a txid that is used again.
    assert misses(playing) or story.broken == "REUSED"
    with pytest.raises(RefusedError):
        followed(playing, events, story.bounds)


def test_a_txid_is_used_again_after_a_stop_that_notes_nothing(
    monkeypatch: pytest.MonkeyPatch, events: list[Event], tmp_path: Path
) -> None:
    """No step is refused: whoever stops may have died before its note."""
    monkeypatch.setattr(Epochs, "note_past", lambda *_: None)
    (story,) = (one for one in TOLD if one.without == "past")
    steps = tell(story).story
    playing = Playing(steps, story.bounds, events, tmp_path)
    playing.play()
    assert playing.steps == set(range(len(steps)))
