"""Gives a home to whoever has logged in: nodes that others made, or that were made before the login, are closed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kinesis_trident.checkpoint.errors import ZooKeeperAccessError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.zookeeper.session import Session

__all__ = ["close_home"]

log = logging.getLogger(__name__)

_AT_ONCE = 1_000
"""Nodes in one round trip."""


def close_home(session: Session, layout: Layout, mine: str) -> int:
    """Set the ACL of this client's login on every node of a home that has another; returns how many were closed.

    Nothing is asked of ZooKeeper without a login. With one it is two reads where the home is closed already: the node
    `epoch` is closed last, so its ACL tells. Each folder is closed before its children are listed: nobody else makes
    an open node in it afterwards. The parent of the application's homes is closed too where it is open to anyone; the
    root, which applications share, is left as it is.

    Args:
        session: its client's default ACL is what nodes are to have.
        layout: of the home.
        mine: the path of a node that this client has just made: ZooKeeper has put its identities in the place of
            `auth` there.

    Raises:
        ZooKeeperAccessError: a node belongs to another login.
    """
    acl = session.client.default_acl
    if acl is None:
        return 0
    parent = layout.application_path(layout.root, layout.application)
    wanted, marker, above = session.acls([mine, layout.epoch, parent])
    if above is not None and any(entry.id.scheme == "world" for entry in above):
        _close(session, [parent], acl, layout)
    if wanted is not None and marker is not None and _ids(wanted) == _ids(marker):
        return 0
    closed = 0
    level = [layout.base]
    while level:
        _close(session, level, acl, layout)
        closed += len(level)
        level = [
            f"{folder}/{name}"
            for folder, names in zip(level, session.children(level), strict=True)
            for name in names or ()
            if f"{folder}/{name}" != layout.epoch
        ]
    _close(session, [layout.epoch], acl, layout)
    log.warning(
        "%s was open, or made with another login: its %d nodes now give access to this login alone",
        layout.base,
        closed + 1,
    )
    return closed + 1


def _close(session: Session, paths: Sequence[str], acl: Sequence[Any], layout: Layout) -> None:
    for start in range(0, len(paths), _AT_ONCE):
        some = paths[start : start + _AT_ONCE]
        for path, allowed in zip(some, session.set_acl(some, acl), strict=True):
            if not allowed:
                msg = (
                    f"{path} belongs to another login, so {layout.base} cannot be closed to others, and the query does "
                    "not start. Log in as who made it (zookeeper.digest.password, zookeeper.sasl.*), have an "
                    "administrator of ZooKeeper set its ACL to this login, or use another applicationName"
                )
                raise ZooKeeperAccessError(msg)


def _ids(acl: Sequence[Any]) -> set[tuple[int, str, str]]:
    return {(entry.perms, entry.id.scheme, entry.id.id) for entry in acl}
