"""Closes a home to all but this login: nodes that others made, or that were made before the login."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kinesis_trident.checkpoint.errors import ZooKeeperAccessError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.zookeeper.session import Session

log = logging.getLogger(__name__)

_AT_ONCE = 1_000
"""The number of nodes in one round trip."""


def close_home(session: Session, layout: Layout, mine: str) -> int:
    """Set the ACL of this client's login on every node of a home with another ACL; return the number of such nodes.

    Without a login it sends no request. With one it needs two reads if the home is closed already: the node `epoch`
    is closed last, so its ACL shows it. Each folder is closed before its children are listed: nobody else can make
    an open node in it afterwards. The parent of the application's homes is also closed if it is open to anyone; the
    root, which applications share, stays as it is.

    Args:
        session: its client's default ACL is the one that nodes get.
        layout: of the home.
        mine: the path of a node that this client has just made: there ZooKeeper has replaced `auth` by its
            identities.

    Raises:
        ZooKeeperAccessError: a node belongs to another login.
    """
    acl = session.client.default_acl
    if acl is None:
        return 0
    parent = layout.parent
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
        "%s was open, or was made with another login: its %d nodes now give access to this login only",
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
                    f"{path} belongs to another login, so {layout.base} cannot be closed to others and the query "
                    "does not start. Log in with the credentials that made it (zookeeper.digest.password, "
                    "zookeeper.sasl.*), have an administrator of ZooKeeper set its ACL to this login, or use "
                    "another applicationName"
                )
                raise ZooKeeperAccessError(msg)


def _ids(acl: Sequence[Any]) -> set[tuple[int, str, str]]:
    return {(entry.perms, entry.id.scheme, entry.id.id) for entry in acl}
