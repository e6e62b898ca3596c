"""The names that people give: of the fields of tuples, and of components and streams. One rule for each."""

from __future__ import annotations

from collections.abc import Iterable

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.common.visible_text import shorten

_LONGEST = 100
_IN_TITLES = "()/\\"
"""Messages and reports put a stream behind its component in brackets, and checkpoints have folders of names."""


def check_name(what: str, name: object) -> str:
    """Return the name of a component or a stream.

    Raises:
        TopologyError: it is not a text of 1 to 100 visible letters, begins with `__`, or has brackets or slashes.
    """
    if (
        isinstance(name, str)
        and 0 < len(name) <= _LONGEST
        and name.isprintable()
        and not name.startswith("__")
        and name.strip(". ")
        and not any(one in name for one in _IN_TITLES)
    ):
        return name
    shown = repr(name if not isinstance(name, str) or len(name) <= _LONGEST else f"{name[:_LONGEST]}...")
    msg = (
        f"{what} {shown}: the name is not valid. Give a text of 1 to {_LONGEST} letters, without brackets and slashes, "
        "that does not begin with '__'"
    )
    raise TopologyError(msg)


def check_label(label: object) -> str:
    """Return the name that stands before operations; the empty one is none.

    Raises:
        TopologyError: it is not a text of up to 100 visible letters, or has a `#`.
    """
    if isinstance(label, str) and len(label) <= _LONGEST and label.isprintable() and "#" not in label:
        return label
    msg = (
        f"name({shorten(repr(label), _LONGEST)}): the label is not valid. Give a text of up to {_LONGEST} letters "
        "without '#', which stands before the numbers of equal operations"
    )
    raise TopologyError(msg)


def check_fields(what: str, names: Iterable[str], taken: Iterable[str] = ()) -> None:
    """Check the names of fields that stand side by side in a tuple.

    Args:
        what: has the fields, for messages.
        names: of the fields.
        taken: names of others that are there already.

    Raises:
        TopologyError: a name is empty, begins with `__`, has a dot or a backtick, or is there already: for Spark, which
            has columns of these names, `Word` is `word`.
    """
    known = dict.fromkeys((name.casefold() for name in taken), "is there already")
    for name in names:
        if not name or name.startswith("__"):
            why = "is empty" if not name else "begins with '__', which is reserved"
        elif "." in name or "`" in name:
            why = "has a dot or a backtick, which Spark reads as a part of a name"
        elif name.casefold() in known:
            why = f"{known[name.casefold()]}; for Spark 'Word' is 'word'"
        else:
            known[name.casefold()] = "is named twice"
            continue
        msg = f"{what}: the field {name!r} {why}. Rename it"
        raise TopologyError(msg)


def quoted(name: str) -> str:
    """Return the name of a column as it stands in an expression of Spark."""
    return f"`{name.replace('`', '``')}`"
