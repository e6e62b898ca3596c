"""Memcached's meta commands as bytes: requests for many keys at once, and the parsing of answers."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.memcached.connection import IncompleteError, MemcachedError, value_size

__all__ = ["MemcachedError", "compare_and_sets", "found", "gets", "not_stored", "sets", "stored", "wire_keys"]

_PLAIN = re.compile(rb"(?!~)[^\x00-\x20\x7f]{1,250}")
_ALL_PLAIN = re.compile(rb"[^\x00-\x20\x7f~]*")
_SIZES = {say: [b" %d %b C" % (size, say) for size in range(1024)] for say in (b"c", b"k q")}


def wire_keys(keys: Sequence[str]) -> list[bytes]:
    """Return keys in a form for memcached: unchanged up to 250 bytes without spaces and control characters.

    Others become `~b` and base64, or, if that is too long, `~h` and a hash; so do keys that start with `~`.
    """
    names = list(map(str.encode, keys))
    if max(map(len, names), default=0) <= 250 and all(names) and _ALL_PLAIN.fullmatch(b"".join(names)):
        return names
    plain = _PLAIN.fullmatch
    return [name if plain(name) else _odd(name) for name in names]


def gets(names: Sequence[bytes]) -> bytes:
    """Return the requests for values and their cas."""
    return b"mg " + b" v c\r\nmg ".join(names) + b" v c\r\n"


def compare_and_sets(
    names: Sequence[bytes],
    values: Sequence[bytes | None],
    versions: Sequence[Version],
    ttl: bytes,
    say: bytes = b"c",
) -> bytes:
    """Return requests that set each key that still has its cas or is still absent; None removes it.

    `say` selects the answer: `c`, the new cas of each; `k q`, only the keys that were not set, and nothing for
    removed ones. The second halves memcached's work.
    """
    nothing = type(None)
    if nothing in set(map(type, values)) or nothing in set(map(type, versions)):
        return b"".join(
            _delete(name, cas)
            if value is None
            else b"ms %b %d %b ME%b\r\n%b\r\n" % (name, len(value), say, ttl, value)
            if cas is None
            else b"ms %b %d %b C%b%b\r\n%b\r\n" % (name, len(value), say, cas, ttl, value)
            for name, value, cas in zip(names, values, versions, strict=True)
        )
    sizes = list(map(len, values))  # type: ignore[arg-type]
    parts: list[bytes] = [b"\r\nms "] * (6 * len(names))
    parts[0] = b"ms "
    parts[1::6] = names
    heads = _SIZES[say]
    if max(sizes) < len(heads):
        parts[2::6] = map(heads.__getitem__, sizes)
    else:
        parts[2::6] = map((b" %d " + say + b" C").__mod__, sizes)
    parts[3::6] = versions
    parts[4::6] = [ttl + b"\r\n"] * len(names)
    parts[5::6] = values  # type: ignore[assignment]
    parts.append(b"\r\n")
    return b"".join(parts)


def sets(names: Sequence[bytes], values: Sequence[bytes | None], ttl: bytes) -> bytes:
    """Return requests that set each key; None removes it."""
    return b"".join(
        b"md %b\r\n" % name if value is None else b"ms %b %d c%b\r\n%b\r\n" % (name, len(value), ttl, value)
        for name, value in zip(names, values, strict=True)
    )


def found(answer: bytes, count: int) -> tuple[list[bytes | None], list[Version]]:
    """Parse values and their cas, None for nothing: all at once if all exist without line ends, else one by one.

    Raises:
        IncompleteError: the answer is incomplete.
        MemcachedError: the answer is an error.
    """
    lines = answer.split(b"\r\n")
    if len(lines) == 2 * count + 1:
        values: list[bytes | None] = list(lines[1::2])
        words = b" ".join(lines[:-1:2]).replace(b" c", b" ").split(b" ")
        cases = words[2::3]
        if (
            len(words) == 3 * count
            and set(words[::3]) == {b"VA"}
            and words[1::3] == [*map(b"%d".__mod__, map(len, lines[1::2]))]
            and _are_cases(cases)
        ):
            return values, list(cases)
    return _parse_one_by_one(answer, count)


def stored(answer: bytes, count: int) -> list[Version]:
    """Parse the new cas of each key, or `LOST`.

    Raises:
        MemcachedError: the answer is an error.
    """
    cases = answer[4:-2].split(b"\r\nHD c")
    if len(cases) == count and answer.startswith(b"HD c") and _are_cases(cases):
        return list(cases)
    written: list[Version] = []
    lines = answer.split(b"\r\n")
    for line in lines[:count]:
        words = line.split()
        if not words or words[0] not in {b"HD", b"EX", b"NS", b"NF"}:
            raise MemcachedError(line)
        # A deleted key has no cas: its version is that of an absent key.
        cas = words[1][1:] if len(words) > 1 else None
        if cas is not None and not cas.isdigit():
            raise MemcachedError(line)
        written.append(cas if words[0] == b"HD" else LOST)
    if len(lines) != count + 1:
        raise MemcachedError(b"%d answers to %d requests" % (len(lines) - 1, count))
    return written


def not_stored(answer: bytes) -> set[bytes]:
    """Parse the keys that were not set, from an answer that contains nothing else.

    Raises:
        IncompleteError: the answer is incomplete.
        MemcachedError: the answer is an error.
    """
    if answer and not answer.endswith(b"\r\n"):
        # It was cut within a key that ends like an answer.
        raise IncompleteError
    lost = set()
    for line in answer.split(b"\r\n")[:-1]:
        words = line.split()
        if len(words) != 2 or words[0] not in {b"EX", b"NS", b"NF"}:
            raise MemcachedError(line)
        lost.add(words[1][1:])
    return lost


def _parse_one_by_one(answer: bytes, count: int) -> tuple[list[bytes | None], list[Version]]:
    values: list[bytes | None] = []
    cases: list[Version] = []
    at = 0
    for _ in range(count):
        end = answer.find(b"\r\n", at)
        if end < 0:
            raise IncompleteError
        line = answer[at:end]
        words = line.split()
        if words == [b"EN"]:
            values.append(None)
            cases.append(None)
            at = end + 2
        elif words[:1] == [b"VA"]:
            start = end + 2
            at = start + value_size(line) + 2
            if len(answer) < at:
                raise IncompleteError
            if len(words) != 3 or not _are_cases([words[2][1:]]) or answer[at - 2 : at] != b"\r\n":
                raise MemcachedError(line)
            values.append(answer[start : at - 2])
            cases.append(words[2][1:])
        else:
            raise MemcachedError(line)
    if at != len(answer):
        raise MemcachedError(answer[at:])
    return values, cases


def _are_cases(cases: Sequence[bytes]) -> bool:
    return b"" not in cases and (not cases or b"".join(cases).isdigit())


def _delete(name: bytes, cas: bytes | None) -> bytes:
    # The key was absent: an add that expires at once fails if it exists now.
    return b"ms %b 0 c ME T-1\r\n\r\n" % name if cas is None else b"md %b C%b\r\n" % (name, cas)


def _odd(name: bytes) -> bytes:
    encoded = b"~b" + base64.urlsafe_b64encode(name)
    return encoded if len(encoded) <= 250 else b"~h" + hashlib.sha256(name).hexdigest().encode()
