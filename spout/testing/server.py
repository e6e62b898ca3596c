"""An HTTP server on loopback in its own thread, which can break connections on purpose."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus

from kinesis_trident.common.errors import KinesisTridentError


class SeveredError(KinesisTridentError):
    """Raised while a reply is produced part by part: the sent parts arrive, and the connection closes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; its header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, sent after `delay` seconds; the connection closes after the share `sent` of the body.

    With `parts` the body is sent part by part; with `rate`, with about so many bytes a second.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    sent: float | None = None
    parts: AsyncIterator[bytes] | None = None
    rate: float | None = None


class LoopbackServer:
    """Serves `answer`, which is called in the server's thread, until it is stopped.

    Args:
        answer: returns the reply to a request; an exception closes the connection.
        port: to listen on; 0 for any free one.
        host: the address of loopback to listen on.
    """

    def __init__(self, answer: Callable[[Request], Reply], port: int = 0, host: str = "127.0.0.1") -> None:
        self._answer = answer
        self._port = port
        self._host = host
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    def start(self) -> int:
        """Start to listen; return the port.

        Raises:
            OSError: the port is taken.
        """
        listening: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), name="scripted-kinesis", daemon=True
        )
        self._thread.start()
        return listening.result()

    def stop(self) -> None:
        """Close all connections and end the thread."""
        if self._loop is not None and self._stopped is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()
        self._loop = self._stopped = self._thread = None

    async def _serve(self, listening: Future[int]) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._converse(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                # The client has disconnected, or the server stops: either way this connection ends.
                pass
            finally:
                connections.discard(task)
                writer.transport.abort()

        try:
            server = await asyncio.start_server(connected, self._host, self._port)
        except OSError as error:
            listening.set_exception(error)
            return
        listening.set_result(server.sockets[0].getsockname()[1])
        await self._stopped.wait()
        server.close()
        # A connection that was just accepted reaches `connected`, which closes it.
        await asyncio.sleep(0)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await _read(reader)
            reply = self._answer(request)
            if reply.delay:
                await asyncio.sleep(reply.delay)
            if reply.parts is not None:
                if await _send_parts(writer, reply, reply.parts):
                    continue
                break
            if reply.rate is not None:
                await _trickle(writer, reply, reply.rate)
                continue
            whole = _head(reply) + reply.body
            if reply.sent is None:
                writer.write(whole)
                await writer.drain()
                continue
            if reply.sent > 0:
                writer.write(whole[: len(whole) - len(reply.body) + int(len(reply.body) * reply.sent)])
                await writer.drain()
            break
        # Close the connection in order, so that sent data arrives.
        writer.close()
        await writer.wait_closed()


async def _trickle(writer: asyncio.StreamWriter, reply: Reply, rate: float) -> None:
    """Send the head of a reply at once, and its body ten times a second."""
    writer.write(_head(reply))
    step = max(1, round(rate / 10))
    for start in range(0, len(reply.body), step):
        writer.write(reply.body[start : start + step])
        await writer.drain()
        await asyncio.sleep(step / rate)


async def _send_parts(writer: asyncio.StreamWriter, reply: Reply, parts: AsyncIterator[bytes]) -> bool:
    """Send the parts of a reply one by one, as chunks; tell whether it was sent to its end."""
    head = _head(reply)
    try:
        async for part in parts:
            writer.write(head + b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            head = b""
    except SeveredError:
        return False
    writer.write(head + b"0\r\n\r\n")
    await writer.drain()
    return True


async def _read(reader: asyncio.StreamReader) -> Request:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    length = f"Content-Length: {len(reply.body)}" if reply.parts is None else "Transfer-Encoding: chunked"
    lines += [length, "", ""]
    return "\r\n".join(lines).encode("latin-1")
