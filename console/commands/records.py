"""The commands on shards, and on records that are read and not done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.commands.words import actions_of
from kinesis_trident.console.dead_letter_replay import message_id_of, waiting_ids
from kinesis_trident.console.redelivery import Redelivery, deliver_again, find_requests
from kinesis_trident.console.render import json_line, show
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.target import (
    AsJson,
    ConsoleError,
    Limit,
    MessageIds,
    Shard,
    Target,
    ViewLimit,
    Watch,
)
from kinesis_trident.console.views import VIEWS

commands = typer.Typer()

retries = actions_of(
    "retries",
    "Show why failed records come back, or list them, or have them delivered now with a new count of attempts.",
    "Show failed records that come back, and why.",
)


def add_view(to: typer.Typer, name: str, view: str, short_help: str | None = None) -> None:
    """Add a command that shows a view; its help is the view's docstring."""

    def command(
        *,
        target: Target,
        shard: Shard = None,
        limit: ViewLimit = None,
        as_json: AsJson = False,
        watch: Watch = 0,
    ) -> None:
        show(VIEWS[view], target, as_json, watch, shard, limit)

    add_command(to, name, help=VIEWS[view].__doc__, short_help=short_help)(command)


add_view(commands, "inflight", "inflight", "Show records that are read and not done.")
add_view(commands, "shards", "shards", "Show the parents and children of shards.")
add_view(retries, "reasons", "retry-reasons")
add_view(retries, "list", "retries")


@add_command(retries, "now")
def retry_now(
    *,
    target: Target,
    message_ids: MessageIds = None,
    every: Annotated[bool, typer.Option("--all", help="All that wait.")] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="All whose reason has this text.")
    ] = None,
    shard: Shard = None,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """Have failed records delivered now, with a new count of attempts."""
    if bool(message_ids) + every + (reason is not None) != 1:
        msg = "now needs message ids, or --reason TEXT, or --all"
        raise ConsoleError(msg)
    with open_scope(target, shard) as scope:
        scope.check_records(message_ids or [], change=True)
        waiting = [
            one for store in scope.stores for one in waiting_ids(store, scope.shards_of(store), reason)
        ]
        chosen = list(filter(scope.takes, message_ids or waiting))[: limit or None]
        if not chosen:
            what = f" for a reason with {reason!r}" if reason else ""
            msg = f"no record{scope.said} waits for a retry{what}. {target.command('retries')} shows all that do"
            raise ConsoleError(msg)
        ask(find_requests(scope.stores, map(message_id_of, chosen)), as_json, what="retry now")


commands.add_typer(retries)


def ask(requests: Sequence[Redelivery], as_json: bool, *, what: str) -> None:
    """Ask the query for records, note that, and say when they come."""
    count = deliver_again(requests, what=what)
    running = any(one.store.epochs.owner() for one in requests)
    if as_json:
        print(json_line({"records": count, "running": running}))
        return
    when = "with one of the next micro-batches" if running else "once the query is started: it is not running"
    print(f"{count_noun(count, 'record')} will be delivered again {when}")
