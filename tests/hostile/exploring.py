"""A search for input that breaks a reader: seeded mutants of valid input, guided by the lines that they reach."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import hostility
import pytest
from hostility import EXAMPLES, ODD_TEXTS, TOKENS, Refused
from thorough import CHAOS

__all__ = ["explore", "explores", "mutant"]

explores = pytest.mark.hypothesis
"""The mark of a test that `make chaos` plays with other and more input, as it does the property tests."""

_PARTS = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|[A-Za-z_@][\w.@-]*|[^\w\s]', re.DOTALL
)
"""The parts of a text: strings, numbers, words, and each other sign."""

_NUMBERS = [
    0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 2**128,
    10**129, 10**400,
]  # fmt: skip

_SIZES = (1, 2, 4, 8)

_DEEP = (3, 200, 3000)


def mutant(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return a sample with one to five changes. Pure: the same for the same state of `rng`."""
    data = rng.choice(samples)
    for _ in range(rng.randint(1, 5)):
        change = _of_text if rng.random() < 0.5 else _of_bytes
        data = change(rng, data, rng.choice(samples))
    return data


def explore(
    read: Callable[[bytes], object], samples: Sequence[bytes], *, times: float = 1, seed: int | None = None
) -> None:
    """Have a reader read `EXAMPLES` mutants; one that reaches lines that none before it has reached is a sample too.

    Args:
        read: calls `hostility.read_bounded`, which notes the lines.
        samples: valid input, from real round trips.
        times: plays so many times the number of examples.
        seed: of the mutants; the same each time, in `make chaos` another one.

    Raises:
        Refused: the reader raised what it does not document; the message has the input.
    """
    for sample in samples:
        read(sample)
    if seed is None:
        seed = random.SystemRandom().randrange(2**32) if CHAOS else 1
    rng = random.Random(seed)
    corpus = list(samples)
    for number in range(max(1, round(EXAMPLES * times))):
        data = mutant(rng, corpus)
        before = len(hostility.reached)
        try:
            read(data)
        except BaseException as error:
            msg = f"mutant {number} of seed {seed}, {data[:20_000]!r}: {error!r}"
            raise Refused(msg) from error
        if len(hostility.reached) > before:
            corpus.append(data)


def _of_text(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change one part of a text: another number, another kind of value, once more, deeper, longer, gone."""
    parts = [found.span() for found in _PARTS.finditer(data)]
    if not parts:
        return _of_bytes(rng, data, other)
    start, end = rng.choice(parts)
    part = data[start:end]
    match rng.randrange(9):
        case 0:
            part = b"%d" % rng.choice(_NUMBERS)
        case 1:
            part = rng.choice(TOKENS)
        case 2:
            part = rng.choice(ODD_TEXTS).encode("utf-8", "surrogatepass")
            part = b'"%b"' % part if rng.random() < 0.7 else part
        case 3:
            # A part of another sample, mostly of another kind.
            others = _PARTS.findall(other)
            part = rng.choice(others) if others else part
        case 4:
            # A whole neighbourhood once more: keys that repeat, rows that repeat.
            first, last = sorted((rng.choice(parts)[0], rng.choice(parts)[1]))
            part = data[first:last] * rng.choice((1, 2, 40))
        case 5:
            deep = rng.choice(_DEEP)
            opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"<", b">")))
            part = opened * deep + part + closed * deep
        case 6:
            part = part * rng.choice((2, 50, 2000))
        case 7:
            part = b""
        case 8:
            # The text of a value as a value, or a value as its text.
            part = part[1:-1] if part[:1] == b'"' else b'"%b"' % part
    return data[:start] + part + data[end:]


def _of_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change some bytes: one bit, a number of some size, a part that is cut, repeated, moved or of another sample."""
    start = rng.randint(0, len(data))
    end = min(len(data), start + rng.choice((1, 2, 4, 8, 40, 400)))
    before, after, changed = data[:start], data[end:], data[start:end]
    match rng.randrange(8):
        case 0:
            after = data[start + 1 :]
            changed = bytes(byte ^ 1 << rng.randrange(8) for byte in data[start : start + 1])
        case 1:
            size = rng.choice(_SIZES)
            number = rng.choice(_NUMBERS) % 256**size
            changed = number.to_bytes(size, "big" if rng.random() < 0.5 else "little")
            after = data[start + size :]
        case 2:
            changed = b""
        case 3:
            changed *= rng.choice((2, 3, 51))
        case 4:
            changed = after = b""
        case 5:
            changed, after = b"", other[rng.randint(0, len(other)) :]
        case 6:
            changed = rng.choice(TOKENS)
        case 7:
            changed = rng.randbytes(rng.choice((1, 2, 8)))
    return before + changed + after
