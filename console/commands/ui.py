"""The command that shows applications in a browser."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from kinesis_trident.console.commands.application_options import add_command
from kinesis_trident.console.target import ConsoleError, Target

commands = typer.Typer()

_NEEDED = ("starlette", "uvicorn", "jinja2")


@add_command(commands, "ui", short_help="Show the applications in a browser.")
def ui(
    *,
    everything: Target,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 chooses a free one.")] = 8787,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which browsers may ask for the page; repeat it."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let whoever has the printed token retry and replay.")
    ] = False,
    letters: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="A dead-letter folder whose payloads the pages show; repeat it."),
    ] = None,
    refresh: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show the applications as web pages that keep themselves up to date; Ctrl-C ends it.

    The pages show failed records' payloads and are not protected by a password: they listen on this machine alone
    unless --host says otherwise. They change nothing without --allow-changes.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        msg = f"the page needs {', '.join(missing)}. Install it with pip install 'kinesis-trident[ui]'"
        raise ConsoleError(msg)
    # Only here: the packages of the extra may be missing.
    from kinesis_trident.console.web.app import Site, make_app
    from kinesis_trident.console.web.guard import Guard
    from kinesis_trident.console.web.server import bind, serve, url_of
    from kinesis_trident.console.web.watcher import Watcher

    listening = bind(host, port, "Choose others with --host and --port")
    guard = Guard() if allow_changes else None
    watcher = Watcher(everything, refresh, folders=tuple(letters or ()))
    changes = f"?token={guard.token}; it can change things" if guard else ""
    print(f"the page is at {url_of(listening)}{changes}; Ctrl-C ends it", flush=True)
    serve(make_app(Site(watcher, guard), [host, *(allowed_host or ())]), listening, watcher.end)
