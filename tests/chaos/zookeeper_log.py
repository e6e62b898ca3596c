"""The transaction logs of ZooKeeper servers: each write that was ever made, in its order, with the checks beside it.

The format is that of ZooKeeper's `FileTxnLog`: a header, and then each transaction with its checksum and length.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Change", "Transaction", "read_transactions"]

_MAGIC = b"ZKLG"
_CREATE, _DELETE, _SET_DATA, _CHECK, _MULTI = 1, 2, 5, 13, 14
_CREATES = (_CREATE, 15, 19, 21)
"""Of a node, of one whose answer says more, of a container, and of one with a lifetime."""


class Change(NamedTuple):
    """A part of a transaction: `create`, `delete`, `set` or `check`; `version`: after a `set`, or of a `check`."""

    kind: str
    path: str
    data: bytes = b""
    version: int = 0


class Transaction(NamedTuple):
    """A write of a session; `time` is that of the leader's clock, in epoch milliseconds."""

    zxid: int
    session: int
    time: int
    changes: tuple[Change, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple[int, ...]:
        found: tuple[int, ...] = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return found

    def take_bytes(self) -> bytes:
        (length,) = self.take("i")
        found = self.data[self.at : self.at + max(length, 0)]
        self.at += max(length, 0)
        return found


def read_transactions(servers: Sequence[Path]) -> list[Transaction]:
    """Return what most of the servers have in their logs, which are below these folders, by zxids.

    What a leader has logged that was killed, and no majority, was never committed.
    """
    logs = [
        {one.zxid: one for path in folder.rglob("version-2/log.*") for one in _read(path.read_bytes())}
        for folder in servers
    ]
    counts = Counter(zxid for log in logs for zxid in log)
    found = {zxid: one for log in logs for zxid, one in log.items()}
    return [found[zxid] for zxid in sorted(found) if counts[zxid] > len(servers) // 2]


def _read(data: bytes) -> Iterator[Transaction]:
    if data[:4] != _MAGIC:
        return
    reader = _Reader(data)
    reader.at = 16
    while reader.at + 12 <= len(data):
        checksum, length = reader.take("qi")
        whole = data[reader.at : reader.at + length]
        # The file is made longer ahead of what is written, and a full disk may hold a part of the last one.
        if not length or checksum != zlib.adler32(whole):
            return
        session, _, zxid, time, kind = _Reader(whole).take("qiqqi")
        yield Transaction(zxid, session, time, tuple(_changes(kind, whole[32:])))
        reader.at += length + 1


def _changes(kind: int, data: bytes) -> list[Change]:
    reader, found = _Reader(data), list[Change]()
    if kind == _MULTI:
        (count,) = reader.take("i")
        for _ in range(count):
            (part,) = reader.take("i")
            found += _changes(part, reader.take_bytes())
    elif kind in _CREATES:
        found.append(Change("create", reader.take_bytes().decode(), reader.take_bytes()))
    elif kind == _DELETE:
        found.append(Change("delete", reader.take_bytes().decode()))
    elif kind == _SET_DATA:
        path, value = reader.take_bytes().decode(), reader.take_bytes()
        found.append(Change("set", path, value, *reader.take("i")))
    elif kind == _CHECK:
        found.append(Change("check", reader.take_bytes().decode(), b"", *reader.take("i")))
    return found
