"""The note of starts that fail before there is a run: they leave nothing in a home, for each begins with an epoch."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress

from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.run_status import FailedStartsNode
from kinesis_trident.checkpoint.store.application_names import layout_of
from kinesis_trident.checkpoint.zookeeper.operations import Create, Delete, Op, Refused, Write
from kinesis_trident.checkpoint.zookeeper.session import Session

log = logging.getLogger(__name__)


def failed_starts(session: Session, layout: Layout) -> FailedStartsNode | None:
    """Return the starts of an application that have failed since the last run; None if none has.

    Raises:
        CorruptNodeError: the note cannot be read.
    """
    path = _path(layout)
    found = session.read([path])[0]
    return decode(path, found.data, FailedStartsNode) if found is not None else None


def note_start(client: KazooClient, root: str, application: str, seconds: float, why: str = "") -> None:
    """Note why a start has failed, or forget those that have: nothing depends on it, so it waits only `seconds`."""
    session = Session(client, seconds)
    try:
        layout = layout_of(session, root, application)
        if why:
            _note_failed_start(session, layout, why, int(time.time() * 1000))
        else:
            forget_failed_starts(session, layout)
    except CheckpointError as trouble:
        log.info("whether a start has failed is not noted: %s", trouble)


def _note_failed_start(session: Session, layout: Layout, why: str, now: int) -> None:
    """Note that a start has failed, with its error; of several at a time one is noted."""
    path = _path(layout)
    found = session.read([path])[0]
    before = decode(path, found.data, FailedStartsNode) if found is not None else None
    node = FailedStartsNode(
        count=before.count + 1 if before is not None else 1,
        since=before.since if before is not None else now,
        at=now,
        host=socket.gethostname(),
        pid=os.getpid(),
        why=why[:1000],
    )
    write: Op = Create(path, encode(node))
    if found is not None:
        write = Write(path, encode(node), found.stat.version)
    else:
        session.ensure(layout.root_path(layout.root) or "/", acl=OPEN_ACL_UNSAFE)
        session.ensure(layout.parent)
    with suppress(Refused):
        session.commit([write])


def forget_failed_starts(session: Session, layout: Layout) -> None:
    """Remove the note: the application has started, or is forgotten.

    Raises:
        CheckpointError: ZooKeeper does not answer.
    """
    with suppress(Refused):
        session.commit([Delete(_path(layout))])


def _path(layout: Layout) -> str:
    return f"{layout.parent}/@starts"
