"""Makes texts fit to show, and what others have said fit to store: short, valid, no control characters. Pure.

A message can hold the record's own data, which may be anything: it must not fill the store, nor drive a terminal.
"""

from __future__ import annotations

import re

REASON_LENGTH = 256
"""Characters kept of a reason."""

# Control characters of ASCII and Latin 1, ends of lines, and what changes the direction of the text around it.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def make_visible(text: str) -> str:
    r"""Return a text whose control characters are written as escapes (`\n`, `\x1b`): shown, it is one line."""
    return _INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text)


def make_reason(text: str) -> str:
    """Return a text as a reason: valid UTF-8, control characters made visible, at most 256 characters."""
    # ZooKeeper's JSON is UTF-8, which cannot contain half a surrogate pair.
    return make_visible(text[:REASON_LENGTH].encode("utf-8", "replace").decode())[:REASON_LENGTH]


def shorten(text: str, most: int = 1000) -> str:
    """Return a text for an error, cut if it is too long: some have a whole value of a megabyte in them."""
    return text if len(text) <= most else f"{text[:most]}..."


def count_noun(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: `1 record`, `1,204 records`; `several` where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
