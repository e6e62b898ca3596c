"""The command that gives an application another name."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.application_names import read_names, rename_application
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_layouts
from kinesis_trident.checkpoint.zookeeper.operations import Refused
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.console.changes import confirm, note_request, refuse_running, take_over
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.render import json_line
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.target import AsJson, ConsoleError, Force, Target, Yes

commands = typer.Typer()


@add_command(commands, "rename", short_help="Give an application another name.")
def rename(
    *,
    target: Target,
    name: Annotated[
        str, typer.Argument(metavar="NEW", help="The option applicationName of the query from now on.")
    ],
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give an application another name: all that is done stays done, and the old name is refused from then on.

    End the query first, and start it again with the new applicationName and its own checkpointLocation. The nodes stay
    where they are, and sinks, states and dead letters know the application by its first name: so nothing comes twice.
    """
    with open_scope(target) as scope:
        store = scope.stores[0]
        session = Session(store.client, target.zookeeper.session_timeout)
        if len(scope.stores) < len(scope.homes):
            every = ", ".join(sorted(set().union(*scope.homes.values())))
            msg = f"rename is about the whole application, which reads {every}. Leave --stream out"
            raise ConsoleError(msg)
        for one in scope.stores:
            scope.check_whole(one, "rename")
            if not force:
                refuse_running(one, ", or give --force to take over")
        if name == target.application:
            msg = f"the application is called {name!r} already. Give the new name after it"
            raise ConsoleError(msg)
        begun = _refuse_begun(session, target.root, name, store.layout, force=force)
        what = f"rename application {target.application} to {name}"
        confirm(what, yes=yes)
        if force:
            take_over(scope.stores, what, yes=True, force=True)
        # A query of the new name was refused, because its checkpointLocation is that of the old one.
        for one, (_, epoch) in zip(begun, take_over(begun, what, yes=True, force=force), strict=True):
            one.changes.remove_home(epoch)
        try:
            rename_application(session, store.layout, name)
        except Refused as error:
            msg = f"the names were changed by another process meanwhile ({error}). Look at apps, and try it again"
            raise ConsoleError(msg) from None
        for one in scope.stores:
            note_request(one, what)
    found = {"application": name, "before": target.application}
    print(
        json_line(found)
        if as_json
        else f"{target.application} is called {name} now. Start its query with applicationName={name} and the same "
        "checkpointLocation"
    )


def _refuse_begun(
    session: Session, root: str, name: str, layout: Layout, *, force: bool
) -> list[SourceStore]:
    """Return the homes of the new name, in which nothing was read yet.

    Raises:
        ConsoleError: another application has that name.
    """
    if read_names(session, root, [name])[name].renamed == layout.application:
        # One of its own earlier names.
        return []
    stores = [SourceStore(session.client, one, session.timeout) for one in find_layouts(session, root, name)]
    for store in stores:
        if store.batches.settled() is not None or store.batches.newest() is not None:
            msg = f"there is an application {name!r} already ({store.layout.base}). Choose another name"
            raise ConsoleError(msg)
        if not force:
            refuse_running(store, ", or give --force to take over")
    return stores
