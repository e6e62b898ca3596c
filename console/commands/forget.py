"""The command that removes the state of an application that is renamed or gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.checkpoint.store.application_names import forget_names
from kinesis_trident.checkpoint.store.failed_starts import forget_failed_starts
from kinesis_trident.checkpoint.store.source_store import SourceStore, find_layouts
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.times import iso_time
from kinesis_trident.console.changes import take_over
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.commands.checkpoints import write_copies
from kinesis_trident.console.render import json_line
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.target import AsJson, ConsoleError, Target, Yes
from kinesis_trident.console.text import now_ms

commands = typer.Typer()


@add_command(commands, "forget", short_help="Remove the state of an application that is gone.")
def forget(
    *,
    target: Target,
    backup: Annotated[
        Path | None,
        typer.Option("--backup", metavar="FILE", help="Where the checkpoints are written first; a new file."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove an application from ZooKeeper, or one of its streams: checkpoints, unfinished records, all.

    For an application that was renamed, or whose stream is gone: metrics and alerts then forget it too. The checkpoints
    are written to a file first, which `checkpoints APP import` reads. A start after this begins at startingPosition.
    """
    with open_scope(target) as scope:
        for store in scope.stores:
            scope.check_whole(store, "forget")
        at = re.sub("[-:]", "", iso_time(now_ms()))
        file = backup or Path(f"{escape(target.application)}-{at}.jsonl")
        if file.exists():
            msg = f"{file} exists. Give a new file with --backup"
            raise ConsoleError(msg)
        # Also those of streams that were created again, or were read alone before.
        session = Session(scope.stores[0].client, target.zookeeper.session_timeout)
        bases = {store.layout.base for store in scope.stores}
        every = [
            SourceStore(session.client, layout, session.timeout)
            for layout in find_layouts(session, target.root, target.application)
            if scope.streams is None or layout.stream in scope.streams or layout.base in bases
        ]
        homes = ", ".join(store.layout.base for store in every)
        held = [
            node
            for store in scope.stores
            for node in store.open_for_looking(lambda _: None).shards.inflight().values()
        ]
        unfinished = sum(run.count for node in held for run in (*node.waiting, *node.dead))
        unfinished += sum(run.count for node in held for run in node.pending)
        lost = f"; {unfinished} unfinished records there are never delivered again" if unfinished else ""
        taken = take_over(
            every,
            f"write the checkpoints to {file} and remove {homes}{lost}. txids and epochs start at 1 again after it: a "
            "query needs another place in its sink then",
            yes=yes,
        )
        write_copies(file, [encode(copy) for copy, _ in taken])
        for store, (_, epoch) in zip(every, taken, strict=True):
            store.changes.remove_home(epoch)
        if not find_layouts(session, target.root, target.application):
            forget_failed_starts(session, every[0].layout)
            forget_names(session, every[0].layout)
    found = {"forgotten": homes, "backup": str(file)}
    print(
        json_line(found)
        if as_json
        else f"{target.application} is forgotten: {homes}; its checkpoints are in {file}"
    )
