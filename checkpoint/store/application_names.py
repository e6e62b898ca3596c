"""The names of applications: one that was renamed keeps its state where it is, and its old name means nothing.

Sinks, states and Spark's checkpoint know an application by the name under which its nodes stand. It stays, so that a
rename changes what people type and read, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kinesis_trident.checkpoint.errors import CorruptNodeError, RenamedError, ZooKeeperAccessError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import NameNode
from kinesis_trident.checkpoint.zookeeper.operations import Create, Delete, Op, Write
from kinesis_trident.checkpoint.zookeeper.session import Session

_NOTHING = NameNode(renamed="")


def read_names(session: Session, root: str, names: Sequence[str]) -> dict[str, NameNode]:
    """Return what is noted of names of applications; of most, and of other programs' nodes, that is nothing."""
    paths = [Layout.application_path(root, name) for name in names]
    try:
        every = session.read(paths)
    except ZooKeeperAccessError:
        if len(names) == 1:
            return dict.fromkeys(names, _NOTHING)
        # One of another login hides no others.
        return {name: read_names(session, root, [name])[name] for name in names}
    notes = dict.fromkeys(names, _NOTHING)
    for name, path, found in zip(names, paths, every, strict=True):
        if found is not None and found.data:
            with suppress(CorruptNodeError):
                notes[name] = decode(path, found.data, NameNode)
    return notes


def layout_of(session: Session, root: str, application: str) -> Layout:
    """Return the layout of several streams of an application, wherever its nodes stand.

    Raises:
        RenamedError: it has another name now.
    """
    note = read_names(session, root, [application])[application]
    if note.renamed:
        msg = (
            f"application {application!r} was renamed to {note.renamed!r}, which goes on with its state. Use "
            f"{note.renamed!r} as the applicationName"
        )
        raise RenamedError(msg)
    return Layout(root, application, earlier=note.earlier)


def rename_application(session: Session, layout: Layout, name: str) -> None:
    """Give an application another name, in one multi; `layout` is one of its homes.

    Raises:
        Refused: another process has changed one of the names meanwhile.
    """
    earlier = layout.names
    notes = {each: NameNode(renamed=name) for each in earlier} | {name: NameNode(renamed="", earlier=earlier)}
    paths = {each: Layout.application_path(layout.root, each) for each in notes}
    ops: list[Op] = []
    for (each, path), found in zip(paths.items(), session.read([*paths.values()]), strict=True):
        data = encode(notes[each])
        ops.append(Create(path, data) if found is None else Write(path, data, found.stat.version))
    session.commit(ops)


def forget_names(session: Session, layout: Layout) -> None:
    """Remove what is noted of the names of an application whose homes are gone.

    Raises:
        Refused: another process makes nodes there.
    """
    paths = [Layout.application_path(layout.root, name) for name in layout.names]
    for path, below in zip(paths, session.children(paths), strict=True):
        if below is not None:
            session.commit([Delete(path) if not below else Write(path, b"")])
