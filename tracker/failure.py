"""Why a record is not done: one value, from where an error is caught to the text that is stored. Pure.

Stored it is a text, which this module alone writes and reads. Most are what somebody said, with the bolt or function:
`ValueError: no number (bolt parse)`, `... (in map(parse))`. What decides begins with a word of `_WORDS` instead:

    WORD[ <epoch ms>][ (bolt <name>)]...[: <what was said>[ (in <function>)]]

So what somebody says and would be taken for such a head is stored behind `said: `, and shown without it.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import msgspec

from kinesis_trident.common.visible_text import REASON_LENGTH, make_reason

OTHER = "other"
"""The class of a reason that names no class of errors."""

_SAID = "said: "
_NAME = " (bolt "
_NAMED = re.compile(r"(.*) \((?:bolt |(?=in ))(.*)\)", re.DOTALL)
_NAME_LENGTH = 100
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}")


class Kind(IntEnum):
    """What a failure means for its record. Of several failures of a record the one of the highest kind counts."""

    BEHIND = 0  # It waits for another record of its key.
    HELD = 1  # It has not failed: bolts hold it until others come.
    TIMEOUT = 2  # Nobody has acked it in time.
    RETRY = 3  # A function, a bolt or a sink has failed it.
    LOST = 4  # Tuples of its tree were lost or doubled between two operators.
    TIMED_OUT = 5  # A function does not end with it.
    DIED = 6  # It ends the process that works on it.
    UNREADABLE = 7  # It cannot be decoded.
    EXPIRED = 8  # The stream no longer has it.
    AGED = 9  # It is older than somebody wants to have it.
    PERMANENT = 10  # No retry can help.


# What a function has failed needs a word only with a time.
_WORDS = {kind.name: kind for kind in Kind if kind not in (Kind.RETRY, Kind.DIED)} | {
    "HELD_ANEW": Kind.HELD,
    "WORKER_DIED": Kind.DIED,
    "AFTER": Kind.RETRY,
}
_WORD_OF = {kind: word for word, kind in _WORDS.items() if word != "HELD_ANEW"}
_HEAD = re.compile(rf"({'|'.join(sorted(_WORDS, reverse=True))})(?: ([0-9]{{1,16}}))?(?= \(bolt |: |\Z)")


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a record is not done.

    Attributes:
        kind: what it means for the record.
        reason: what was said; see `Failure.said`.
        where: the bolt that failed it, or `in ` and the function; of records that are held all bolts that hold them,
            or none if they are not known.
        not_before_at: the earliest time of the next delivery, in epoch milliseconds; 0: the policy's.
        anew: the time for which a record may be held begins again.
    """

    kind: Kind = Kind.RETRY
    reason: str = ""
    where: tuple[str, ...] = ()
    not_before_at: int = 0
    anew: bool = False

    @classmethod
    def said(cls, text: str, *where: str) -> Failure:
        """Return the failure of which somebody says this: it never means more than that."""
        return cls(Kind.RETRY, make_reason(text), where)

    def __str__(self) -> str:
        return shown(text_of(self))


OF_ANOTHER_STREAM = Failure(Kind.EXPIRED, "Kinesis calls its position invalid: it is of another stream")
"""The failure of a record that its stream never had, which only a letter of another stream of that name asks for."""


def join(one: Failure, other: Failure) -> Failure:
    """Return the failure of a record that has two, in whatever order and however often they are told.

    The higher kind counts; of one kind the bolt whose name comes first, and of one bolt the text that does. All bolts
    that hold a record are named, unless some are not known.
    """
    if one == other:
        return one
    not_before_at = max(one.not_before_at, other.not_before_at)
    if one.kind == other.kind and one.kind <= Kind.HELD:
        where = tuple(sorted({*one.where, *other.where})) if one.where and other.where else ()
        reason, anew = min(one.reason, other.reason), one.anew or other.anew
        return Failure(one.kind, reason, where, not_before_at, anew)
    first = min(one, other, key=lambda each: (-each.kind, each.where, each.reason))
    return msgspec.structs.replace(first, not_before_at=not_before_at)


def text_of(failure: Failure) -> str:
    """Return a failure as it is stored: at most 256 characters."""
    kind, where, at = failure.kind, failure.where, failure.not_before_at
    suffix = "".join([f"{' (' if name[:3] == 'in ' else _NAME}{name[:_NAME_LENGTH]})" for name in where])
    if kind is Kind.RETRY and not at:
        text = failure.reason[: REASON_LENGTH - len(suffix)] + suffix
        if _find_head(text) is None and not text.startswith(_SAID):
            return text
        return _SAID + failure.reason[: REASON_LENGTH - len(suffix) - len(_SAID)] + suffix
    word = "HELD_ANEW" if kind is Kind.HELD and failure.anew else _WORD_OF[kind]
    head = f"{word} {at}" if at else word
    if suffix.startswith(" (in "):
        return f"{head}: {failure.reason}"[: REASON_LENGTH - len(suffix)] + suffix
    named = head + "".join([f"{_NAME}{name})" for name in where])
    # Cut off, it would lack the last bolts: without any name a reader knows that they are not known.
    head = named if len(named) <= REASON_LENGTH else head
    return (f"{head}: {failure.reason}" if failure.reason else head)[:REASON_LENGTH]


@lru_cache(1024)
def parse(text: str) -> Failure:
    """Return the failure that is stored as a text: any text is one."""
    if (found := _find_head(text)) is not None:
        return found
    said = shown(text)
    named = _NAMED.fullmatch(said)
    return Failure(Kind.RETRY, named[1], (named[2],)) if named else Failure(Kind.RETRY, said)


def _find_head(text: str) -> Failure | None:
    """Return the failure of a text that begins with a word for one; None for what somebody said."""
    head = _HEAD.match(text)
    if head is None or (head[1] == "AFTER" and head[2] is None):
        return None
    rest, where = text[head.end() :], tuple[str, ...]()
    if rest.startswith(_NAME):
        names, colon, reason = rest.partition("): ")
        if not colon:
            if not names.endswith(")"):
                return None
            names = names[:-1]
        where = tuple(names.removeprefix(_NAME).split(f"){_NAME}"))
    elif (named := _NAMED.fullmatch(rest)) and named[2].startswith("in "):
        reason, where = named[1][2:], (named[2],)
    else:
        reason = rest[2:]
    return Failure(_WORDS[head[1]], reason, where, int(head[2] or 0), head[1] == "HELD_ANEW")


def shown(text: str) -> str:
    """Return what people read of a stored text."""
    return text.removeprefix(_SAID)


def is_held(text: str) -> bool:
    """Return True for the stored text of a record that bolts hold."""
    # Nearly all are others, and there may be very many.
    return text.startswith("HELD") and parse(text).kind is Kind.HELD


def error_class(reason: str) -> str:
    """Return the class of the error in a reason, for counting: a message may hold anything, and never repeat."""
    name = reason.partition(":")[0].partition(_NAME)[0].partition(" (in ")[0].strip()
    return name if _CLASS.fullmatch(name) else OTHER
