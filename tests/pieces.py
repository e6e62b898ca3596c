"""Shares the tests among the processes of pytest-xdist piece by piece: a file each, and of a long file each test."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

__all__ = ["Pieces", "piece_of"]

_APART = ("tests/model/test_model.py",)
"""The files whose tests need nothing of each other, and would be waited for together."""


def piece_of(nodeid: str) -> str:
    """Return the name of the piece that a test belongs to: its file, or itself."""
    file = nodeid.partition("::")[0]
    return nodeid if file in _APART else file


class Pieces(LoadFileScheduling):
    """Gives a process one piece after the other, as `--dist loadfile` gives files."""

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)
