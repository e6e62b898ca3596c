"""docs/protocol.md and docs/protocol/stories.md, made from the rules and their stories."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator

from spec.bounds import Bounds
from spec.rules import RULES
from spec.search import Found
from spec.stories import DOCUMENTED, STORIES, Story

__all__ = ["draw", "drawings_in", "drawn_stories", "render", "render_stories"]

_WIDTH = 110
_NOBODY = "outside"
_SEVERAL_SHARDS = 2
_SINKS = {
    "folder": "",
    "state": "an opaque state",
    "fenced": "a fenced transaction",
    "overwritten": "a folder for each txid that `write` deletes first, and no driver that is paused in `write`",
}


def draw(found: Found) -> str:
    """Return a column for each run, and a line for each step; a bar where a run has begun and will go on."""
    steps = [_who_and_what(name) for name in found.story]
    columns = sorted({who for who, _ in steps}, key=lambda who: (who == _NOBODY, who))
    first = {who: next(n for n, step in enumerate(steps) if step[0] == who) for who in columns}
    last = {who: max(n for n, step in enumerate(steps) if step[0] == who) for who in columns}
    width = _WIDTH // len(columns) - 2

    def row(number: str, cells: Iterable[str]) -> str:
        return f"{number:>2}  {'  '.join(cell.ljust(width) for cell in cells)}".rstrip()

    lines = [row("", columns)]
    for n, (who, what) in enumerate(steps):
        for k, part in enumerate(textwrap.wrap(what, width)):
            cells = (
                part if one == who else "|" if one != _NOBODY and first[one] < n < last[one] else ""
                for one in columns
            )
            lines.append(row("" if k else str(n + 1), cells))
    return "\n".join([*lines, f"=>  {found.broken}"])


def _who_and_what(name: str) -> tuple[str, str]:
    found = re.fullmatch(r"(run \d+)(:)? (.*)", name)
    return (found[1], found[3]) if found is not None else (_NOBODY, name)


def describe(bounds: Bounds) -> str:
    """Return the bounds of a world in words."""
    counts = " and ".join(map(str, bounds.shards))
    several = len(bounds.shards) >= _SEVERAL_SHARDS
    records = f"shards of {counts} records" if several else f"a shard of {_count(bounds.shards[0], 'record')}"
    kinds = {(True,): "plain queries", (False, True): "queries of both kinds"}.get(bounds.kinds)
    more = (
        kinds,
        _SINKS[bounds.sink],
        bounds.tries > 1 and f"{bounds.tries} deliveries before the dead letter",
        bounds.fickle is not None
        and f"{_count(len(bounds.fickle), 'record') if bounds.fickle else 'none'} may fail",
        bounds.restores and "a restore of ZooKeeper",
        bounds.late_copies and "from a copy made after the first note of who judges",
        bounds.heeded and "which no driver lives through",
        bounds.checkpoints and "a new Spark checkpoint",
        bounds.lag and "servers that lag",
        bounds.leaves_out and f"{_count(bounds.leaves_out, 'start')} may leave records out",
        bounds.olders and "Spark's checkpoint may come back from a copy",
        bounds.go_on and "`onCheckpointMismatch=continue`",
        bounds.parents and " and ".join(map(_describe_child, bounds.parents.items())),
        bounds.late_tasks and f"{_count(bounds.late_tasks, 'task')} may run twice and end late",
        bounds.expire and f"retention takes {_count(bounds.expire, 'record')}",
        bounds.transactional and "`spout=transactional`",
    )
    return ", ".join(
        [records, _count(bounds.starts, "start"), _count(bounds.txids, "txid"), *filter(None, more)]
    )


def _describe_child(child: tuple[int, tuple[int, ...]]) -> str:
    shard, parents = child
    return f"shard {shard + 1} comes of {' and '.join(f'shard {parent + 1}' for parent in parents)}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def render() -> str:
    """Return the rules, and what is not promised, as Markdown."""
    lines = ["## The rules", ""]
    for name, rule in RULES.items():
        lines += [f"### {name}", "", *_filled(f"**{rule.says}** {rule.why}")]
        for story in (one for one in STORIES if name in one.rules and one.broken):
            lines += _tell_without(name, story)
    lines += ["## What is not promised", ""]
    for story in DOCUMENTED:
        lines += [f"### {story.promise}", "", *_filled(f"{story.words} ({_link(story)})")]
    return "\n".join(lines)


def render_stories(drawing: Callable[[Story], str]) -> str:
    """Return the drawing of each story, with the world that it is told in, as Markdown."""
    lines = ["## The places of the rules", "", "| rule | in the code |", "|---|---|"]
    for rule, how in RULES.items():
        places = ", ".join(f"`{name}` in `{path}.py`" for path, name in map(_path_and_name, how.places))
        lines.append(f"| [`{rule}`](../protocol.md#{rule}) | {places} |")
    lines.append("")
    for story in drawn_stories():
        lines += [f"## {_title(story)}", "", *_filled(f"In this world: {describe(story.bounds)}.")]
        lines += ["```text", drawing(story), "```", ""]
    return "\n".join(lines)


def drawn_stories() -> Iterator[Story]:
    """Yield the stories in which something is broken, in the order of the pages."""
    for name in RULES:
        yield from (one for one in STORIES if one.broken and one.without.startswith(name))
    yield from DOCUMENTED


def _title(story: Story) -> str:
    return f"Without {story.without.replace(',', ' and ')}" if story.without else story.promise


def _link(story: Story) -> str:
    anchor = re.sub(r"[^\w\- ]", "", _title(story).lower()).replace(" ", "-")
    return f"[drawn](protocol/stories.md#{anchor})"


def _path_and_name(place: str) -> tuple[str, str]:
    module, _, name = place.partition(":")
    return module.replace(".", "/"), name


def _filled(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False), ""]


def _tell_without(name: str, story: Story) -> list[str]:
    others = " and ".join(f"[`{one}`](#{one})" for one in story.without.split(",") if one != name)
    if others and not story.without.startswith(name):
        return _filled(f"It stands behind {others}: the story is told there.")
    dropped = f"Without this rule and {others}" if others else "Without it"
    return _filled(f"{dropped}: {story.words} ({_link(story)})")


def drawings_in(page: str) -> dict[Story, str]:
    """Return the drawing of each story that a page has."""
    found = re.findall(r"^```text\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    return dict(zip(drawn_stories(), found, strict=True))
