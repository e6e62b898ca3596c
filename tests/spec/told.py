"""The stories that a search has found, kept in a file: each is told by taking its steps again, which takes no search.

`PYTHONPATH=tests:. python -m spec.told` searches them anew, and writes the file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from spec.search import Found, search, take
from spec.stories import DOCUMENTED, STORIES, Story

__all__ = ["seek", "tell"]

_FILE = Path(__file__).with_name("told.json")
_ALL = [story for story in (*STORIES, *DOCUMENTED) if story.broken]


def seek(story: Story) -> Found:
    """Search for the shortest story."""
    asked = (story.broken,) if story.broken else ("LOST", "TWICE", "EARLY")
    return search(story.bounds.dropping(story.rules), kinds=asked)


def tell(story: Story) -> Found:
    """Take the steps that are kept of a story; what they break is found again."""
    return take(story.bounds.dropping(story.rules), _kept()[str(story)], story.broken)


@cache
def _kept() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(_FILE.read_text())
    return found


def main() -> None:
    """Search all stories, and keep them."""
    found = {str(story): seek(story).story for story in _ALL}
    _FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
