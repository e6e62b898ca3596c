"""Calls, right ones and faults, give what botocore's own calls give."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from hypothesis import given, strategies as st

from kinesis_trident.spout.kinesis import Unavailable
from kinesis_trident.spout.kinesis.aws_session import create_calls, open_session
from kinesis_trident.spout.kinesis.event_stream import EventStream
from kinesis_trident.spout.kinesis.remedies import RequestClock
from kinesis_trident.spout.kinesis.wire import connections
from kinesis_trident.spout.kinesis.wire.calls import KinesisCalls
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.patience import Deadline
from kinesis_trident.spout.testing.fan_out import event_message

BODY = b'{"Records":[],"MillisBehindLatest":3,"NextShardIterator":"next"}'
LARGE = BODY.replace(b"[]", b"[" + b" " * 2**20 + b"]")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\n"


def whole(body: bytes) -> bytes:
    """An answer with that body."""
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


WHOLE = whole(BODY)


@contextmanager
def many(behave: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server of many connections at a time, that answers each request as it is told."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while requested(self.request):
                behave(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def endpoint(behave: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that reads a request and then does as it is told, connection after connection."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            connection = listener.accept()[0]
            with connection:
                connection.settimeout(120)
                while not ended.is_set() and requested(connection):
                    behave(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            ended.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def requested(connection: socket.socket) -> bool:
    """Read a request; whether there was one."""
    received = b""
    try:
        while b"\r\n\r\n" not in received or not received.endswith(b"}"):
            more = connection.recv(65536)
            if not more:
                return False
            received += more
    except OSError:
        return False
    return True


def chunked(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for piece in (BODY[:7], BODY[7:]):
        connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    connection.sendall(b"0\r\n\r\n")


def stall(connection: socket.socket) -> None:
    connection.sendall(WHOLE[:-10])
    # Until the client has had enough of it.
    connection.recv(1)


def stall_in_a_large_one(connection: socket.socket) -> None:
    connection.sendall(whole(LARGE)[:-10])
    connection.recv(1)


def end(connection: socket.socket) -> None:
    connection.sendall(WHOLE[:-10])
    connection.shutdown(socket.SHUT_RDWR)


def end_in_a_large_one(connection: socket.socket) -> None:
    connection.sendall(whole(LARGE)[:-10])
    connection.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    connection.sendall(WHOLE[:-10])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def bad_chunk(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
    connection.close()


def calls_to(url: str, clock: Callable[[], float] = monotonic) -> KinesisCalls:
    options = ConnectionOptions(stream_name="s", endpoint_url=url)
    signing = RequestClock()
    return create_calls(open_session(options, signing), options, signing, clock)[0]


def whole_body(body: memoryview, _: int | None) -> Any:
    return json.loads(bytes(body))


def kind_of(error: Exception) -> tuple[str, str]:
    return type(error).__name__, str(error).partition("0x")[0]


def theirs(url: str, patience: float = 60) -> Any:
    """Return what a call of botocore gives: its answer, or the kind of its error and what it says."""
    client = get_session().create_client(
        "kinesis",
        endpoint_url=url,
        config=Config(read_timeout=patience, retries={"total_max_attempts": 1}),
    )
    try:
        answer = client.get_records(ShardIterator="i")
    except Exception as error:
        return kind_of(error)
    finally:
        client.close()
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


def ours(url: str, times: int = 1) -> Any:
    """Return the same of a call of ours."""
    calls = calls_to(url)
    try:
        for _ in range(times):
            answer = calls.call("GetRecords", {"ShardIterator": "i"}, whole_body)
    except Exception as error:
        return kind_of(error)
    return answer


@pytest.mark.parametrize(
    "behave", [lambda one: one.sendall(WHOLE), lambda one: one.sendall(whole(LARGE)), chunked]
)
def test_a_whole_answer(behave: Callable[[socket.socket], object]) -> None:
    with endpoint(behave) as url:
        # Twice: the connection is used again.
        assert ours(url, times=2) == {
            "Records": [],
            "MillisBehindLatest": 3,
            "NextShardIterator": "next",
        }


def test_calls_that_were_begun_are_under_way_at_once() -> None:
    all_are_there = threading.Barrier(3)

    def behave(connection: socket.socket) -> None:
        all_are_there.wait(60)
        connection.sendall(WHOLE)

    with many(behave) as url:
        calls = calls_to(url)
        begun = [calls.begin("GetRecords", {"ShardIterator": "i"}) for _ in range(3)]
        answers = [calls.read("GetRecords", one, whole_body) for one in begun]
    assert answers == [json.loads(BODY)] * 3


@pytest.mark.parametrize("behave", [stall, stall_in_a_large_one, reset, bad_chunk])
def test_errors_are_those_of_botocore(
    behave: Callable[[socket.socket], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 2)
    # Side by side, as some wait until they have had enough.
    with many(behave) as url, ThreadPoolExecutor(2) as pool:
        found, plain = pool.submit(ours, url), pool.submit(theirs, url, 2)

    assert isinstance(plain.result(), tuple)
    assert found.result() == plain.result()


@pytest.mark.parametrize("behave", [end, end_in_a_large_one])
def test_an_answer_that_ends_early_is_an_error(behave: Callable[[socket.socket], object]) -> None:
    with endpoint(behave) as url:
        assert ours(url)[0] == "ConnectionClosedError"


def test_each_of_many_large_answers_at_a_time_is_what_was_sent() -> None:
    bodies = [
        BODY.replace(b":3", b":%d" % lag).replace(b"[]", b"[" + b" " * 2**20 + b"]") for lag in range(40)
    ]
    asked = iter(bodies)
    at_work: set[int] = set()

    def parse(body: memoryview, _: int | None) -> int:
        at_work.add(threading.get_ident())
        lag: int = json.loads(bytes(body))["MillisBehindLatest"]
        return lag

    with many(lambda connection: connection.sendall(whole(next(asked)))) as url:
        calls = calls_to(url)
        with ThreadPoolExecutor(8) as pool:
            lags = pool.map(lambda _: calls.call("GetRecords", {"ShardIterator": "i"}, parse), bodies)
            assert sorted(lags) == list(range(40))
    # In a thread of their own: what malloc keeps for a thread is kept once.
    assert len(at_work) == 1


def ticking(step: float) -> Callable[[], float]:
    """A clock on which so many seconds pass from one question to the next."""
    return partial(next, count(0.0, step))


def trickle(connection: socket.socket, parts: Iterator[bytes], pieces: int = 60) -> None:
    """Send bytes one by one, and the rest after so many: a reader without patience of its own gets them all."""
    body = b"".join(parts)
    with suppress(OSError):
        for at in range(pieces):
            connection.sendall(body[at : at + 1])
            sleep(0.01)
        connection.sendall(body[pieces:])


def slow_whole(body: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.sendall(whole(body)[: -len(body)])
        trickle(connection, iter([body]))

    return behave


def slow_chunk(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(LARGE))
    trickle(connection, iter([LARGE, b"\r\n0\r\n\r\n"]))


@pytest.mark.parametrize("behave", [slow_whole(BODY), slow_whole(LARGE), slow_chunk])
@pytest.mark.parametrize("call", ["GetRecords", "ListShards"])
def test_a_body_that_trickles_is_given_up_for_another_connection(
    behave: Callable[[socket.socket], None], call: str
) -> None:
    peers: list[int] = []

    def once(connection: socket.socket) -> None:
        peers.append(connection.getpeername()[1])
        if len(peers) == 1:
            behave(connection)
        else:
            connection.sendall(WHOLE)

    with many(once) as url:
        # Ten seconds, and what the bytes are worth, have passed at the fourth of them.
        calls = calls_to(url, ticking(3.0))
        with pytest.raises(HTTPClientError, match=r"the answer is too slow: \d+ bytes in 12 s"):
            calls.call(call, {}, whole_body)
        assert calls.call(call, {}, whole_body)["MillisBehindLatest"] == 3
    assert len(set(peers)) == 2


def test_two_answers_that_trickle_do_not_hold_the_others() -> None:
    asked = count()
    trickling = threading.Barrier(3)

    def behave(connection: socket.socket) -> None:
        if next(asked) < 2:
            connection.sendall(whole(LARGE)[: -len(LARGE)])
            trickling.wait()
            trickle(connection, iter([LARGE]), pieces=1000)
        else:
            connection.sendall(whole(LARGE))

    order: list[str] = []
    with many(behave) as url, ThreadPoolExecutor(3) as pool:
        calls = calls_to(url, ticking(3.0))

        def ask() -> None:
            try:
                calls.call("GetRecords", {}, whole_body)
                order.append("whole")
            except HTTPClientError:
                order.append("slow")

        slow = [pool.submit(ask) for _ in range(2)]
        # Both have a buffer, of which there are two.
        trickling.wait()
        pool.submit(ask).result()
        for one in slow:
            one.result()
    assert sorted(order) == ["slow", "slow", "whole"]


def test_an_event_that_trickles_inside_a_chunk_ends_its_subscription() -> None:
    event = event_message("SubscribeToShardEvent", b" " * 2**20)

    def behave(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(event))
        trickle(connection, iter([event, b"\r\n0\r\n\r\n"]))

    with many(behave) as url:
        body = calls_to(url).open("SubscribeToShard", {})
        stream = EventStream(body, "the subscription", "here", None, clock=ticking(3.0))
        with pytest.raises(Unavailable, match=r"the subscription in here: the answer is too slow: \d+ bytes"):
            stream.next(10)
        stream.close()


def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    peers: list[int] = []
    closed = threading.Semaphore(0)

    def once(connection: socket.socket) -> None:
        peers.append(connection.getpeername()[1])
        connection.sendall(WHOLE)
        connection.shutdown(socket.SHUT_RDWR)
        closed.release()

    with many(once) as url:
        calls = calls_to(url)
        for _ in range(3):
            assert calls.call("GetRecords", {}, whole_body)["MillisBehindLatest"] == 3
            closed.acquire()
    assert len(set(peers)) == 3


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\n", b" "])
def test_what_nobody_has_asked_for_is_no_answer_to_the_next_call(more: bytes) -> None:
    peers: list[int] = []

    def behave(connection: socket.socket) -> None:
        peers.append(connection.getpeername()[1])
        connection.sendall(WHOLE + more)

    with many(behave) as url:
        calls = calls_to(url)
        for _ in range(3):
            assert calls.call("GetRecords", {}, whole_body)["MillisBehindLatest"] == 3
    assert len(set(peers)) == 3


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n" % len(BODY),
    ],
)
def test_an_answer_may_end_with_its_connection(head: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        connection.sendall(head + b"\r\n" + BODY)
        connection.shutdown(socket.SHUT_RDWR)

    with many(behave) as url:
        assert ours(url, times=2)["MillisBehindLatest"] == 3


def test_interim_answers_are_skipped_and_one_without_a_body_ends_with_its_head() -> None:
    answers = iter([b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, b"HTTP/1.1 204 No Content\r\n\r\n"])
    with many(lambda connection: connection.sendall(next(answers))) as url:
        calls = calls_to(url)
        assert calls.call("GetRecords", {}, whole_body)["MillisBehindLatest"] == 3
        with pytest.raises(ResponseParserError, match="HTTP 204"):
            calls.call("GetRecords", {}, whole_body)


def test_a_refusal_that_comes_before_the_whole_request_is_read() -> None:
    body = b"too large"

    def behave(connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        connection.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def refuse() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.recv(1000)
                behave(connection)
                with suppress(OSError):
                    while connection.recv(2**20):
                        pass

        with ThreadPoolExecutor(1) as pool:
            refusing = pool.submit(refuse)
            with pytest.raises(ClientError, match="413"):
                calls_to(url).call("PutRecords", {}, whole_body, b"x" * 2**22)
            refusing.result()


@given(st.lists(st.tuples(st.floats(0.001, 20), st.integers(0, 2**20)), max_size=30))
def test_a_deadline_is_met_exactly_by_what_is_fast_enough(steps: list[tuple[float, int]]) -> None:
    now, size = 0.0, 0
    deadline = Deadline(10.0, lambda: now)
    for seconds, more in steps:
        now, size = now + seconds, size + more
        allowed = 10.0 + size / 65536
        if now >= allowed:
            with pytest.raises(TimeoutError, match=f"too slow: {size} bytes"):
                deadline.seconds_left(size)
            return
        assert deadline.seconds_left(size) == pytest.approx(allowed - now)
