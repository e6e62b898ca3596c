"""The connections of a process answer at once, and are left as they are otherwise."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from harness import eventually

from kinesis_trident.common.prompt_sockets import PromptLines, acknowledge_at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the setting")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection whose ends put acknowledgements off."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        for end in (one, other):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        yield one, other


def settings(end: socket.socket) -> tuple[int, int]:
    options = (socket.TCP_QUICKACK, socket.TCP_NODELAY)
    first, second = (end.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    return first, second


def test_all_connections_answer_at_once(pair: Pair) -> None:
    assert [settings(end) for end in pair] == [(0, 0), (0, 0)]
    acknowledge_at_once()
    assert [settings(end) for end in pair] == [(1, 1), (1, 1)]
    assert [os.get_blocking(end.fileno()) for end in pair] == [True, True]
    pair[0].sendall(b"text")
    assert pair[1].recv(4) == b"text"


def test_no_file_is_left_open() -> None:
    # In a process of its own: other threads of this one open and close files meanwhile.
    program = (
        "import os, socket\n"
        "from kinesis_trident.common.prompt_sockets import acknowledge_at_once\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "ends = socket.create_connection(server.getsockname()), server.accept()[0], *socket.socketpair()\n"
        "before = os.listdir('/proc/self/fd')\n"
        "acknowledge_at_once()\n"
        "assert os.listdir('/proc/self/fd') == before\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_connections_of_other_kinds_are_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM):
        acknowledge_at_once()
        one.sendall(b"text")
        assert other.recv(4) == b"text"


def test_a_default_timeout_does_not_reach_connections_made_before(pair: Pair) -> None:
    default = socket.getdefaulttimeout()
    socket.setdefaulttimeout(5)
    try:
        acknowledge_at_once()
    finally:
        socket.setdefaulttimeout(default)
    assert [os.get_blocking(end.fileno()) for end in pair] == [True, True]
    assert [settings(end) for end in pair] == [(0, 0), (0, 0)]


def test_each_part_of_a_line_is_acknowledged(pair: Pair) -> None:
    end, other = pair
    parts = [b"a" * 1_000, b"b" * 1_000, b"c\nd", b"e", b"\nf"]

    def send() -> None:
        for part in parts:
            # The kernel does so whenever this end sends.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            other.sendall(part)
            eventually(lambda: settings(end)[0] == 1, "the acknowledgement")
        other.shutdown(socket.SHUT_WR)

    sending = threading.Thread(target=send)
    sending.start()
    lines = PromptLines(end, end.makefile("rb"))
    assert [lines.readline() for _ in range(4)] == [b"a" * 1_000 + b"b" * 1_000 + b"c\n", b"de\n", b"f", b""]
    sending.join()
    lines.close()
