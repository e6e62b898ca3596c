"""The metrics of applications over HTTP, for Prometheus: of the page, and alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kinesis_trident.console.metrics.exporter import ApplicationMetrics, text_of
from kinesis_trident.console.web.guard import guards


def metrics_route(metrics: ApplicationMetrics) -> Route:
    """Return the route of the metrics; each request reads ZooKeeper, one at a time."""
    reading = asyncio.Lock()

    async def answer(_request: Request) -> Response:
        async with reading:
            text = await asyncio.to_thread(text_of, metrics)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", answer, middleware=[Middleware(GZipMiddleware)])


def make_metrics_app(metrics: ApplicationMetrics, hosts: Sequence[str]) -> Starlette:
    """Make the application of the metrics alone; `hosts` are the names under which it may be asked for."""

    @contextlib.asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        yield
        metrics.close()

    return Starlette(routes=[metrics_route(metrics)], middleware=guards(hosts), lifespan=life)
