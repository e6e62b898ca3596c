"""Finds the server of a key: consistent hashing as in libketama and most memcached clients."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Mapping, Sequence

__all__ = ["Ketama"]

_DIGESTS = 40
_POINTS = 4


class Ketama:
    """A ring of 160 points for each server; a key belongs to the next point. Adding a server moves few keys.

    Args:
        servers: `host:port` of each; the port 11211 is not hashed, as in other users of libketama.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        points = sorted(
            (int.from_bytes(digest[4 * point : 4 * point + 4], "little"), server)
            for server in servers
            for i in range(_DIGESTS)
            for digest in [hashlib.md5(f"{server.removesuffix(':11211')}-{i}".encode()).digest()]
            for point in range(_POINTS)
        )
        self._hashes = [point for point, _ in points]
        self._servers = [server for _, server in points]
        self._only = servers[0] if len(servers) == 1 else None

    def server(self, key: bytes) -> str:
        """Return the server of a key."""
        point = int.from_bytes(hashlib.md5(key).digest()[:4], "little")
        return self._servers[bisect.bisect_left(self._hashes, point) % len(self._servers)]

    def spread(self, keys: Sequence[bytes]) -> Mapping[str, Sequence[int]]:
        """Return the positions of the keys of each server."""
        if self._only is not None:
            return {self._only: range(len(keys))} if keys else {}
        where: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            where.setdefault(self.server(key), []).append(i)
        return where
