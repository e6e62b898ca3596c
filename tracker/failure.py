"""Why a record is not done: one value, from where an error is caught to the text that is stored. Pure.

Stored it is a text, which this module alone writes and reads. Most are what somebody said, with the bolt or function:
`ValueError: no number (bolt parse)`, `... (in map(parse))`. What decides begins with a word of `_WORDS` instead:

    WORD[ <seconds>s][ (bolt <name>)]...[: <what was said>[ (in <function>)]]

So what somebody says and would be taken for such a head is stored behind `said: `, and shown without it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from datetime import timedelta
from enum import IntEnum
from functools import lru_cache

import msgspec

from kinesis_trident.common.visible_text import REASON_LENGTH, make_reason, shorten
from kinesis_trident.tracker.errors import DelayError, RecordFailure, seconds_of

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


# What a function has failed needs a word only with a delay.
_WORDS = {kind.name: kind for kind in Kind if kind not in (Kind.RETRY, Kind.DIED)} | {
    "HELD_ANEW": Kind.HELD,
    "WORKER_DIED": Kind.DIED,
    "AFTER": Kind.RETRY,
}
_WORD_OF = {kind: word for word, kind in _WORDS.items() if word != "HELD_ANEW"}
_HEAD = re.compile(rf"({'|'.join(sorted(_WORDS, reverse=True))})(?: ([0-9]{{1,16}})s)?(?= \(bolt |: |\Z)")


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a record is not done.

    Attributes:
        kind: what it means for the record.
        reason: what was said; see `Failure.said`.
        where: the bolt that failed it, or `in ` and the function; of records that are held all bolts that hold them,
            or none if they are not known.
        after_s: the least delay before the next delivery, in seconds; 0: the policy's.
        anew: the time for which a record may be held begins again.
        classes: those of the error that was raised, with all that they derive from; they are not stored.
    """

    kind: Kind = Kind.RETRY
    reason: str = ""
    where: tuple[str, ...] = ()
    after_s: int = 0
    anew: bool = False
    classes: tuple[str, ...] = ()

    @classmethod
    def said(
        cls, text: str, *where: str, retry: bool = True, after: str | timedelta | None = None
    ) -> Failure:
        """Return the failure of which somebody says this: the text itself never means more than that.

        Args:
            text: the reason.
            where: the bolt.
            retry: a further delivery may help.
            after: the least delay before it, such as `10m`; None: the policy's.

        Raises:
            DelayError: `after` is no delay, or there is no further delivery.
        """
        if not retry and after is not None:
            msg = f"after={shorten(repr(after), 100)} is given for a record that does not come again. Leave it out"
            raise DelayError(msg)
        kind = Kind.RETRY if retry else Kind.PERMANENT
        return cls(kind, make_reason(text), where, 0 if after is None else seconds_of(after))

    def without_retry(self, classes: Container[str]) -> Failure:
        """Return the failure as one for good, if the error is of one of these classes or of a subclass of it."""
        if not any(one in classes for one in self.classes):
            return self
        return Failure(Kind.PERMANENT, self.reason, self.where)

    def __str__(self) -> str:
        return shown(text_of(self))


OF_ANOTHER_STREAM = Failure(Kind.EXPIRED, "Kinesis calls its position invalid: it is of another stream")
"""The failure of a record that its stream never had, which only a letter of another stream of that name asks for."""


BEHIND = Failure(Kind.BEHIND)
"""What a record has that waits for an earlier one of its key."""


def failure_of(
    error: object, *where: str, retry: bool = True, after: str | timedelta | None = None
) -> Failure:
    """Return the failure of a record for which code, or the bolt `where`, has raised or said something.

    A `RecordFailure` says by its class whether, and when, the record comes again; of other errors `classes` says what
    they are. `retry`, `after`: as in `Failure.said`.

    Raises:
        DelayError: as `Failure.said`.
    """
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = ""
    classes = tuple[str, ...]()
    if isinstance(error, RecordFailure):
        retry = retry and error.retry
        if retry and after is None and error.after is not None:
            try:
                after = timedelta(seconds=seconds_of(error.after))
            except DelayError as mistake:
                # A subclass need not call what it derives from; its mistake fails its record, as any other does.
                return failure_of(DelayError(f"{type(error).__name__}: {mistake}"), *where)
    elif isinstance(error, BaseException) and after is None:
        classes = tuple([one.__name__ for one in type(error).__mro__[:-1]])
    if isinstance(error, BaseException) or not (text or isinstance(error, str)):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    failure = Failure.said(text or "FAILED", *where, retry=retry, after=after)
    return msgspec.structs.replace(failure, classes=classes) if classes else failure


def join(one: Failure, other: Failure) -> Failure:
    """Return the failure of a record that has two, in whatever order and however often they are told.

    The higher kind counts; of one kind the bolt whose name comes first, and of one bolt the text that does. All bolts
    that hold a record are named, unless some are not known.
    """
    if one == other:
        return one
    after_s = max(one.after_s, other.after_s)
    if one.kind == other.kind and one.kind <= Kind.HELD:
        where = tuple(sorted({*one.where, *other.where})) if one.where and other.where else ()
        reason, anew = min(one.reason, other.reason), one.anew or other.anew
        return Failure(one.kind, reason, where, after_s, anew)
    first = min(one, other, key=lambda each: (-each.kind, each.where, each.reason))
    return msgspec.structs.replace(first, after_s=after_s)


def text_of(failure: Failure) -> str:
    """Return a failure as it is stored: at most 256 characters."""
    kind, where, after_s = failure.kind, failure.where, failure.after_s
    suffix = "".join([f"{' (' if name[:3] == 'in ' else _NAME}{name[:_NAME_LENGTH]})" for name in where])
    if kind is Kind.RETRY and not after_s:
        text = failure.reason[: REASON_LENGTH - len(suffix)] + suffix
        if _find_head(text) is None and not text.startswith(_SAID):
            return text
        return _SAID + failure.reason[: REASON_LENGTH - len(suffix) - len(_SAID)] + suffix
    word = "HELD_ANEW" if kind is Kind.HELD and failure.anew else _WORD_OF[kind]
    head = f"{word} {after_s}s" if after_s else word
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


def class_of(failure: Failure) -> str:
    """Return the word of a failure, or the class of the error in what was said."""
    return _class_in(failure.reason) if failure.kind is Kind.RETRY else _WORD_OF[failure.kind]


def is_behind(text: str) -> bool:
    """Return True for the stored text of a record that waits for another one of its key."""
    return text.startswith("BEHIND") and parse(text).kind is Kind.BEHIND


def error_class(reason: str) -> str:
    """Return the same of a reason as people read it, for counting: a message may hold anything, and never repeat."""
    head = _HEAD.match(reason)
    return _class_in(reason) if head is None else head[1]


def kind_in(name: str) -> str:
    """Return the word of a kind that a class of failures is: that of what was raised or said for any other one."""
    return name if name in _WORDS else Kind.RETRY.name


def _class_in(reason: str) -> str:
    name = reason.partition(":")[0].partition(_NAME)[0].partition(" (in ")[0].strip()
    return name if _CLASS.fullmatch(name) else OTHER
