"""Input that is nearly right, and the bounds on memory and operations that whoever reads it must keep.

A reader may take damaged input for what it says, or refuse it with its documented error; any other error, or more
memory or operations than the size of the input explains, is a bug of the reader.
"""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings, strategies as st

__all__ = [
    "EXAMPLES",
    "ODD_TEXTS",
    "TOKENS",
    "Refused",
    "hostile",
    "mutated",
    "mutated_json",
    "reached",
    "read_bounded",
]

EXAMPLES = int(os.environ.get("HOSTILE_EXAMPLES", "20"))
"""The number of examples that each test plays: `HOSTILE_EXAMPLES=20000` searches for hours, `make test` for seconds."""

hostile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)

T = TypeVar("T")

reached: set[tuple[CodeType, int]] = set()
"""The lines that `read_bounded` has seen so far."""

TOKENS = [
    b"null", b"true", b"-1", b"0", b"1e400", b"-1e308", b"NaN", b"9" * 200, b"9" * 5000, b"1.5", b'""', b"[]", b"{}",
    b'"\\ud800"', b"\\u0000", b"\xff", b"\xc3", b"\0", b"\r\n", b"\n", b"[" * 3000,
    b'{"a":' * 3000, b"\xf3\x89\x9a\xc2", b'"x"', b",", b":", b'"', b"-", b"99999999999999999999", b"2147483648",
    b"-9223372036854775809", b"\xd9\xa3",
]  # fmt: skip
"""Pieces that readers stumble over."""

ODD_TEXTS = [
    "", "abc", "-1", "9" * 200, "9" * 5000, "1_0", " 7", "7\n", "\u0663", "\u00b2", "7:", ":7", "7:99999999999", "\0",
    "\ud800", "\u202e", "NaN", "inf", "1e400", "null", "AT_TIMESTAMP 99999999999999999999", "AT_TIMESTAMP 1e400",
    "AFTER_SEQUENCE_NUMBER -3", "SHARD_END 7:99999999999", "TRIM_HORIZON ", "../..", "a/b", "x" * 3000,
]  # fmt: skip

_SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 10**18, 1.5, -0.0, 1e308])
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(ODD_TEXTS)
    | st.text(max_size=20)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


class Refused(AssertionError):
    """The reader broke a bound, or raised what it does not document."""


@st.composite
def mutated(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw a sample with up to four changes: parts cut, repeated, replaced, put elsewhere; sometimes any bytes."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    data = draw(st.sampled_from(list(samples)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.integers(0, 5)):
            case 0:
                data = data[:start] + data[end:]
            case 1:
                data = data[:end] + data[start:end] * draw(st.sampled_from([1, 2, 50])) + data[end:]
            case 2:
                data = data[:start] + draw(st.sampled_from(TOKENS)) + data[end:]
            case 3:
                data = data[:start] + draw(st.binary(max_size=8)) + data[end:]
            case 4:
                other = draw(st.sampled_from(list(samples)))
                data = data[:start] + other[start:]
            case 5:
                data = data[:start]
    return data


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, inner in pairs for place in _places(inner, (*at, key)))]


def _put(value: Any, at: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not at:
        return change(value)
    copy = value.copy()
    copy[at[0]] = _put(value[at[0]], at[1:], change)
    return copy


@st.composite
def mutated_json(draw: st.DrawFn, samples: Sequence[Any]) -> Any:
    """Draw a JSON document with up to three values of a sample replaced, dropped, added, or named otherwise."""
    value = draw(st.sampled_from(list(samples)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(_places(value)))
        new = draw(_VALUES)
        name = draw(st.sampled_from(ODD_TEXTS) | st.text(max_size=8))
        which = draw(st.integers(0, 5))

        def change(old: Any, new: Any = new, name: str = name, which: int = which) -> Any:
            match old, which:
                case dict(), 0 if old:
                    return {name if key == min(old, key=str) else key: one for key, one in old.items()}
                case dict(), 1:
                    return {**old, name: new}
                case dict(), 2 if old:
                    return {key: one for key, one in old.items() if key != max(old, key=str)}
                case list(), 1:
                    return [*old, new]
                case list(), 2:
                    return old[1:] + old[:1] * 2
                case _:
                    return new

        value = _put(value, at, change)
    return value


def read_bounded(
    call: Callable[[], T],
    size: int,
    errors: type[Exception] | tuple[type[Exception], ...],
    *says: str,
    steps: int = 200,
    least: int = 20_000,
    memory: int = 200,
    fixed: int = 2**20,
) -> T | None:
    """Return what a reader makes of its input, or None if it refuses it as documented.

    Args:
        call: reads the input.
        size: of the input in bytes.
        errors: the documented ones.
        says: what the message of each must have: where, and what to do.
        steps: lines and calls of Python for each byte of the input, beside `least`.
        least: steps.
        memory: bytes for each byte of the input, beside `fixed`.
        fixed: bytes.
    """
    count = 0

    def on_line(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            reached.add((frame.f_code, frame.f_lineno))
        if count > most:
            msg = f"more than {most} steps for {size} bytes"
            raise Refused(msg)
        return on_line

    def on_call(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "c_call"

    most = least + steps * size
    before_trace, before_profile = sys.gettrace(), sys.getprofile()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    value: T | None = None
    message = None
    sys.settrace(on_line)
    sys.setprofile(on_call)
    try:
        value = call()
    except errors as error:
        message = str(error)
    finally:
        sys.setprofile(before_profile)
        sys.settrace(before_trace)
        peak = tracemalloc.get_traced_memory()[1] - before
        if started:
            tracemalloc.stop()
    assert count <= most, f"{count} steps for {size} bytes"
    assert peak <= fixed + memory * size, f"{peak} bytes of memory for {size} bytes"
    if message is not None:
        for word in says:
            assert word in message, f"{word!r} is not in {message!r}"
        assert len(message) < 5000
    return value
