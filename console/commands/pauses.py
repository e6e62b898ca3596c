"""The commands that pause and resume reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Annotated, Any

import typer

from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.pauses import Pause
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.changes import name_of_user, note_request
from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.render import json_line
from kinesis_trident.console.scope import Scope, open_scope
from kinesis_trident.console.target import AsJson, ConsoleError, Shard, Target, command_for
from kinesis_trident.console.text import now_ms
from kinesis_trident.spout.options.parsers import timeout

commands = typer.Typer()


@add_command(commands, "pause", short_help="Have a query read nothing new for a while.")
def pause(
    *,
    target: Target,
    shard: Shard = None,
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="It ends by itself after so long: 30m, 8h."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Failed records and dead letters wait too, until it ends.")
    ] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever wonders.")],
    as_json: AsJson = False,
) -> None:
    """Have a query read nothing new of an application, of some of its streams, or of a shard; nothing is lost by it.

    The batch in hand is done. Failed records still come again when they are due, unless --all. It holds whether the
    query runs or not, until resume, or for as long as --for says. What is unread until its retention is over is lost.
    """
    length = _milliseconds(lasts) if lasts is not None else None
    if not reason.strip():
        msg = "--reason is empty: say why"
        raise typer.BadParameter(msg)
    with open_scope(target, shard) as scope:
        now = now_ms()
        until = now + length if length is not None else None
        for store, names in _chosen(scope, "pause"):
            for name in names:
                _refuse_read(store, name, everything=everything)
                made = Pause(name, now, reason.strip()[:500], name_of_user(), until, everything)
                store.pauses.change(methodcaller("add", made))
                what = store.layout.said_of(name)
                note_request(
                    store, f"pause {what}{' with all that has failed' if everything else ''}: {reason}"
                )
                _say(store, name, "paused", as_json=as_json, until=until)


@add_command(commands, "resume", short_help="Have a query read on.")
def resume(*, target: Target, shard: Shard = None, as_json: AsJson = False) -> None:
    """Have a query read on what is paused: all of an application, what is of some of its streams, or a shard."""
    with open_scope(target, shard) as scope:
        now, done = now_ms(), list[str]()
        lasting = {store.layout.base: _lasting(store, now) for store in scope.stores}
        chosen = _chosen(scope, "resume", lasting)
        for store, names in chosen:
            for one in lasting[store.layout.base]:
                if any(_is_within(one.shards, name) for name in names):
                    store.pauses.change(methodcaller("leave_out", [one.shards]))
                    done.append(store.layout.said_of(one.shards))
                    note_request(store, f"resume {done[-1]}")
                    _say(store, one.shards, "resumed", as_json=as_json)
        for store, names in chosen:
            for one in lasting[store.layout.base]:
                if any(name != one.shards and _is_within(name, one.shards) for name in names):
                    raise _still_paused(store, one)
        if not done:
            msg = f"nothing{scope.said} of application {target.application!r} is paused"
            raise ConsoleError(msg)


def _lasting(store: SourceStore, now: int) -> list[Pause]:
    node = store.pauses.get(fresh=True)
    return [one for one in node.pauses if one.lasts(now)] if node is not None else []


def _still_paused(store: SourceStore, pause: Pause) -> ConsoleError:
    layout, names = store.layout, pause.shards
    stream = names.rpartition("@")[0] or layout.stream
    line = command_for(store, "resume", options=["--stream", stream] if stream else [])
    return ConsoleError(
        f"what is named stays paused with {layout.said_of(names)} (by {pause.by}: {pause.reason}). {line} resumes all "
        "of that; pause the others again"
    )


def _chosen(
    scope: Scope, action: str, known: Mapping[str, Sequence[Pause]] = {}
) -> list[tuple[SourceStore, list[str]]]:
    """Return the homes that are meant, with the shards in each, as a pause names them.

    `known`: the pauses of each home, of which one may be of a shard that retention has removed.
    """
    if scope.shard is not None:
        paused = [
            ref
            for store in scope.stores
            for ref in scope.among(store, (one.shards for one in known.get(store.layout.base, ())))
        ]
        ref = paused[0] if len(paused) == 1 else scope.one_shard(action)
        return [(ref.store, [ref.name])]
    found = []
    for store in scope.stores:
        layout, streams = store.layout, scope.streams_of(store)
        of_streams = [layout.name_of(ShardKey(stream, at, "")) for stream, at in sorted(streams.items())]
        found.append((store, of_streams if layout.several and scope.streams is not None else [""]))
    return found


def _refuse_read(store: SourceStore, name: str, *, everything: bool) -> None:
    """Refuse to pause a shard that was read to its end: its children are what is read."""
    lineage = store.shards.lineage()
    listed = lineage.shards.get(name) if lineage is not None else None
    if listed is None or listed.state != "drained" or everything:
        return
    children = [child for child, one in lineage.shards.items() if name in one.parents] if lineage else []
    more = f" Pause its children: {', '.join(map(store.layout.source_of, children))}" if children else ""
    msg = f"{store.layout.said_of(name)} was read to its end: nothing new comes of it.{more}"
    raise ConsoleError(msg)


def _is_within(names: str, other: str) -> bool:
    """Return whether a pause of some shards is about no others than one of `other`."""
    return names == other or not other or (other.endswith("/") and names.startswith(other))


def _say(store: SourceStore, name: str, what: str, *, as_json: bool, until: int | None = None) -> None:
    layout = store.layout
    said: dict[str, Any] = {"application": layout.application, what: layout.said_of(name)}
    batch, settled, _ = store.batches.newest_unsettled()
    txid = (
        batch.plan.txid if batch is not None and batch.plan.txid > (settled.txid if settled else 0) else None
    )
    if what == "paused":
        said |= {"until_at": until, "txid": txid}
    if as_json:
        print(json_line(said))
        return
    ends = f" until {iso_time(until)}" if until is not None else ""
    first = f"; the batch in hand, txid {txid}, is done first" if what == "paused" and txid else ""
    print(make_visible(f"{said[what]} of {layout.application}: {what}{ends}{first}"))


def _milliseconds(text: str) -> int:
    try:
        return round(timeout(text) * 1000)
    except ValueError as error:
        msg = f"--for is {text!r}. Expected: {error}"
        raise typer.BadParameter(msg) from None
