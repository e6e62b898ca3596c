"""The routes of the web page: lists, pages, live events, changes, assets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun, make_visible
from kinesis_trident.console.dead_letter_replay import message_id_of, refuse_replayed, waiting_ids
from kinesis_trident.console.redelivery import dead_letter_now, deliver_again, find_requests
from kinesis_trident.console.scope import scope_of
from kinesis_trident.console.target import ConsoleError
from kinesis_trident.console.text import duration, lag_text, short
from kinesis_trident.console.web.guard import Guard, cookie_name, guards
from kinesis_trident.console.web.page import application_values, list_values
from kinesis_trident.console.web.server import REQUEST_SECONDS
from kinesis_trident.console.web.watcher import ApplicationView, Watcher

if TYPE_CHECKING:
    from kinesis_trident.console.metrics.exporter import ApplicationMetrics

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Read once: no path of a request reaches the file system.
_ASSETS = {
    path.name: path.read_bytes() for path in sorted((_HERE / "assets").iterdir()) if path.suffix in _TYPES
}
_BODY_MOST = 64 * 1024
_LISTENERS_MOST = 64
_SAID_MS = 60_000


def _templates() -> Environment:
    def finalize(value: Any) -> Any:
        return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": duration,
        "lag": lag_text,
        "time": iso_time,
        "short": short,
        "address": lambda name: f"/app?name={quote(name, safe='')}",
        "quoted": lambda name: quote(name, safe=""),
    }
    environment.globals |= {"count_noun": count_noun, "run_name": run_name}
    return environment


_TEMPLATES = _templates()


@dataclass(slots=True)
class Site:
    """The data that the routes share: the looks, and the guard if changes are allowed."""

    watcher: Watcher
    guard: Guard | None = None
    said: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    listeners: int = 0
    metrics: ApplicationMetrics | None = None
    _values: dict[str, tuple[ApplicationView, dict[str, Any]]] = field(default_factory=dict)
    _building: asyncio.Lock = field(default_factory=asyncio.Lock)

    def now(self) -> int:
        """Return the time in epoch milliseconds."""
        return int(self.watcher.clock() * 1000)

    def render(self, name: str, request: Request, **values: Any) -> str:
        """Fill a template."""
        may = self.guard is not None and self.guard.knows(request)
        return _TEMPLATES.get_template(name).render(
            values
            | {
                "now": self.now(),
                "problem_of_all": self.watcher.problem,
                "allowed": self.guard is not None,
                "form": self.guard.form if self.guard and may else "",
            }
        )

    async def values_of(self, look: ApplicationView) -> dict[str, Any]:
        """Return the values of a look, made once for all who watch, in a thread: nobody else waits for a large one."""
        async with self._building:
            known = self._values.get(look.application)
            if known is None or known[0] is not look:
                known = look, await asyncio.to_thread(application_values, look)
                self._values[look.application] = known
        return known[1]

    async def main(self, request: Request, application: str | None) -> str | None:
        """Return the content of a page, which the live events repeat; None if there is no such application."""
        if application is None:
            return self.render("list.html", request, rows=list_values(self.watcher.looks))
        look = self.watcher.looks.get(application)
        if look is None:
            return None
        self.watcher.watch(application)
        values = await self.values_of(look)
        said = self.said.get(application)
        if said is not None and self.now() - said[2] > _SAID_MS:
            said = None
        previews = dict(self.watcher.previews)
        return self.render("application.html", request, said=said, previews=previews, **values)


def make_app(site: Site, hosts: Sequence[str]) -> Starlette:
    """Make the application of the page; `hosts` are the names under which it may be asked for."""

    @contextlib.asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(site.watcher.run())
        yield
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        site.watcher.close()
        if site.metrics is not None:
            site.metrics.close()

    return Starlette(routes=routes(site), middleware=guards(hosts), lifespan=life)


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes; `/metrics` is there if its packages are."""

    async def listed(request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None:
            return _log_in(site, request, token)
        return await _page(site, request, None)

    async def application(request: Request) -> Response:
        return await _page(site, request, request.query_params.get("name", ""))

    async def events(request: Request) -> Response:
        if site.listeners >= _LISTENERS_MOST:
            return _error("too many pages are open on this server. Close some of them", 503)
        # Counted before anything is awaited: very many that come at once are not all let in.
        site.listeners += 1
        return _Events(site, _events(site, request, request.query_params.get("name")))

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            return _error("there is no such file", 404)
        return Response(_ASSETS[name], media_type=_TYPES[Path(name).suffix])

    async def change(request: Request) -> Response:
        return await _change(site, request)

    found: list[BaseRoute] = [
        Route("/", listed),
        Route("/app", application),
        Route("/events", events),
        Route("/assets/{name}", asset),
    ]
    if find_spec("prometheus_client") is not None:
        # Only here: the packages of the extra may be missing.
        from kinesis_trident.console.metrics.exporter import ApplicationMetrics
        from kinesis_trident.console.web.metrics import metrics_route

        # One for all scrapes: it keeps its connection.
        site.metrics = ApplicationMetrics(site.watcher.target.zookeeper, site.watcher.target.root)
        found.append(metrics_route(site.metrics))
    if site.guard is not None:
        found.append(Route("/change", change, methods=["POST"]))
    return found


async def _page(site: Site, request: Request, application: str | None) -> Response:
    main = await site.main(request, application)
    if main is None:
        return _error("there is no such application. The first page lists those there are", 404)
    title = f"{application} · Kinesis-Trident" if application else "Kinesis-Trident"
    stream = "/events" + (f"?name={quote(application, safe='')}" if application is not None else "")
    page = site.render(
        "layout.html", request, main=Markup(main), title=title, application=application, stream=stream
    )
    return HTMLResponse(page)


class _Events(StreamingResponse):
    """A stream of events, which is no listener any more when it ends, in whatever way."""

    def __init__(self, site: Site, content: AsyncIterator[str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._site.listeners -= 1


async def _events(site: Site, request: Request, application: str | None) -> AsyncIterator[str]:
    """Yield the content of a page as events, each time that it has changed."""
    before = None
    async for _ in site.watcher.changes():
        main = await site.main(request, application)
        if main is None:
            # It was there when the page was opened, or the browser asks anew after an outage.
            main = site.render("gone.html", request, application=application)
        if main != before:
            yield f"data: {json.dumps(main)}\n\n"
            before = main
        else:
            # A comment: it shows whether anybody is still there.
            yield ":\n\n"


def _log_in(site: Site, request: Request, token: str) -> Response:
    if site.guard is None or not site.guard.is_token(token):
        return _error(
            "this token is not of this server. Open the address that kinesis-trident ui has printed", 403
        )
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        cookie_name(request),
        site.guard.session,
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )
    return answer


async def _change(site: Site, request: Request) -> Response:
    """Carry out one change; what came of it stands on the page that follows."""
    assert site.guard is not None
    body = b""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > _BODY_MOST:
                    return _error("the request is too long. Choose fewer records", 413)
    except TimeoutError:
        return _error("the request did not come to its end. Send it again", 408)
    fields = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
    refusal = site.guard.refusal(request, fields.get("form", ""))
    if refusal:
        return _error(refusal, 403)
    application = fields.get("application", "")
    if application not in site.watcher.looks:
        return _error("there is no such application. The first page lists those there are", 404)
    try:
        said = await asyncio.to_thread(_carry_out, site, application, fields)
        site.said[application] = ("done", said, site.now())
    except KinesisTridentError as error:
        site.said[application] = ("refused", str(error), site.now())
    return RedirectResponse(f"/app?name={quote(application, safe='')}", 303)


def _carry_out(site: Site, application: str, fields: dict[str, str]) -> str:
    """Carry out a change, and return what comes of it.

    Raises:
        ConsoleError: the records are not there any more.
        CheckpointError: ZooKeeper does not answer.
    """
    action, one = fields.get("action"), fields.get("id", "")
    with site.watcher.stores(application) as every:
        # A record names its stream; a button for all is about the streams that it stands under.
        streams = message_id_of(one).stream if one else fields.get("stream")
        scope = scope_of(every, streams)
        stores = scope.stores
        if action == "dead-letter":
            count = sum(dead_letter_now(store, {one}) for store in stores)
            return f"{count_noun(count, 'record')} will be dead-lettered {_when(stores)}"
        if action == "retry" and not one:
            reason = fields.get("reason", "")
            ids = [
                text
                for store in stores
                for text in waiting_ids(store, scope.shards_of(store), reason, exact=True)
            ]
        elif action in {"retry", "replay"}:
            ids = [one]
            if action == "replay":
                refuse_replayed(stores, ids)
        else:
            msg = "there is no such change. Load the page again"
            raise ConsoleError(msg)
        if not ids:
            msg = "no such record waits for a retry any more. Look at the list again"
            raise ConsoleError(msg)
        requests = find_requests(stores, map(message_id_of, ids))
        count = deliver_again(requests, what="retry now" if action == "retry" else "replay")
        return f"{count_noun(count, 'record')} will be delivered again {_when(stores)}"


def _when(stores: Sequence[SourceStore]) -> str:
    running = any(store.epochs.owner() for store in stores)
    return "with one of the next micro-batches" if running else "once the query is started"


def _error(text: str, status: int) -> Response:
    page = _TEMPLATES.get_template("error.html").render(text=text[:1].upper() + text[1:], status=status)
    return HTMLResponse(page, status)
