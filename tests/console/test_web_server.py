"""The page's defences, against its real server: names, origins, tokens, paths, headers, foreign content."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import given, strategies as st
from lives import eventually
from samples_console import CHILD, NOW, PARENT, SNAPSHOT, Dead, NoKinesis, apart, letter, records
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from web_site import StillWatcher, busy_look, part_of, serving, site_of, still

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    DeadLettersNode,
    InflightNode,
    SettledNode,
    ShardLineage,
    ShardsNode,
)
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper import kept_client
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.console.cli import main
from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.console.web import app as web_app
from kinesis_trident.console.web.app import Site
from kinesis_trident.console.web.drawings import Box, draw_curve, draw_lineage
from kinesis_trident.console.web.guard import Guard, KnownHosts
from kinesis_trident.console.web.history import History
from kinesis_trident.console.web.page import application_values
from kinesis_trident.console.web.server import ImpatientProtocol, bind
from kinesis_trident.console.web.watcher import ApplicationView, Watcher
from kinesis_trident.spout.failed_records import dead_letters
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.tracker.records import Noted, Run

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"
TOKEN = "the-token"

Answer = tuple[int, dict[str, str], str]


def hostile_site() -> Site:
    """Everything that others can name is a script."""
    run = Run("20", "20", failures=(Noted(NOW, HOSTILE),))
    name = f"orders/{CHILD}:1"
    bad = DeadLetterRecord(name, 4, HOSTILE, NOW, 7)
    snapshot = replace(
        SNAPSHOT,
        layout=Layout("/kinesis-trident", HOSTILE, "orders", 1),
        streams=(HOSTILE,),
        shards={**SNAPSHOT.shards, HOSTILE: ShardLineage(parents=(PARENT,))},
        inflight={CHILD: InflightNode(txid=7, waiting=(run,), blocked=HOSTILE)},
        dead_letters={CHILD: DeadLettersNode(count=1, target=f"/{HOSTILE}", last=(bad,))},
        problems=(HOSTILE,),
    )
    return site_of(snapshot, guard=Guard(TOKEN), previews={name: HOSTILE})


class Client:
    """Asks one server, as nobody's browser would."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.host = f"127.0.0.1:{port}"

    def __call__(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {"Host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            # Not `request`, which would tidy the path.
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in named.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body.encode() if body is not None else None)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read().decode()
        finally:
            connection.close()

    def log_in(self) -> tuple[str, str]:
        """The cookie and the field of forms that the token gives."""
        status, headers, _ = self(f"/?token={TOKEN}")
        assert status == 303
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        cookie = cookie.partition(";")[0]
        page = self("/app?" + urlencode({"name": HOSTILE}), Cookie=cookie)[2]
        (form,) = set(re.findall(r'name="form" value="(\w+)"', page))
        return cookie, form


@pytest.fixture(scope="module")
def ask() -> Iterator[Client]:
    with serving(hostile_site()) as port:
        yield Client(port)


@pytest.fixture(scope="module")
def ask_reader() -> Iterator[Client]:
    with serving(site_of(SNAPSHOT)) as port:
        yield Client(port)


def test_nothing_that_others_name_is_markup(ask: Client) -> None:
    cookie, _ = ask.log_in()
    for path in ("/", "/app?" + urlencode({"name": HOSTILE})):
        status, _, page = ask(path, Cookie=cookie)
        assert status == 200
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&lt;script&gt;alert" in page
        # Attributes end where they should.
        assert re.findall(r"<[^>]*\bonerror=[^>]*>", re.sub(r'"[^"]*"', '""', page)) == []


@pytest.mark.parametrize(
    "path", ["/", "/app?name=x", "/assets/page.js", "/assets/none", "/none", "/?token=x"]
)
def test_each_answer_keeps_foreign_content_out(ask: Client, path: str) -> None:
    _, headers, _ = ask(path)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "169.254.0.1"]
)
def test_another_name_of_this_host_is_refused(ask: Client, host: str) -> None:
    for path in ("/", "/app?name=x", "/events", "/assets/page.js"):
        assert ask(path, Host=host)[0] == 400
    assert ask("/change", "POST", "", Host=host, Origin=f"http://{host}")[0] == 400


def test_the_names_of_this_host_are_served(ask: Client) -> None:
    assert ask("/", Host=f"localhost:{ask.port}")[0] == 200


@pytest.mark.parametrize(
    ("given", "asked", "status"),
    [
        ("Metrics.Internal", "metrics.internal:80", 200),
        ("metrics.internal", "METRICS.internal", 200),
        ("metrics.internal:9464", "metrics.internal:9464", 200),
        ("fe80::1", "[fe80::1]:80", 200),
        ("[fe80::1]", "[FE80::1]", 200),
        ("[fe80::1]:80", "[fe80::1]:80", 200),
        ("::", "[::1]:80", 200),
        ("*.internal", "metrics.internal:80", 200),
        ("*.internal", "internal", 400),
        ("*", "anything", 200),
        ("x*", "xy", 400),
        ("", "", 400),
        ("", "a:b:c", 400),
        ("fe80::1", "fe80", 400),
        ("metrics.internal", "metrics.internal.evil.example", 400),
        ("metrics.internal", "metrics.internal:80@evil.example", 400),
    ],
)
def test_names_are_the_same_in_capitals_with_a_port_and_in_brackets(
    given: str, asked: str, status: int
) -> None:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("served")(scope, receive, send)

    async def ask_once() -> int:
        answers: list[Message] = []

        async def send(message: Message) -> None:
            answers.append(message)

        scope = {"type": "http", "method": "GET", "headers": [(b"host", asked.encode())]}
        await KnownHosts(served, ["127.0.0.1", "[::1]", given])(scope, None, send)  # type: ignore[arg-type]
        return int(answers[0]["status"])

    assert asyncio.run(ask_once()) == status


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/assets/%2e%2e/guard.py",
        "/assets/....//app.py",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "/assets/page.js%00.css",
        "/../../../../etc/passwd",
        "/assets/",
    ],
)
def test_no_path_leads_to_another_file(ask: Client, path: str) -> None:
    status, _, page = ask(path)
    assert status == 404
    assert "root:" not in page
    assert "import" not in page


@pytest.mark.parametrize(
    ("origin", "with_cookie", "with_form"),
    [
        ("http://evil.example", True, True),
        ("null", True, True),
        ("", True, True),
        ("own", False, True),
        ("own", True, False),
    ],
)
def test_a_change_needs_our_page_the_cookie_and_the_form(
    ask: Client, origin: str, with_cookie: bool, with_form: bool
) -> None:
    cookie, form = ask.log_in()
    body = urlencode({"application": HOSTILE, "action": "retry", "form": form if with_form else "0" * 64})
    headers = {"Origin": f"http://{ask.host}" if origin == "own" else origin}
    if with_cookie:
        headers["Cookie"] = cookie
    status, _, page = ask("/change", "POST", body, **headers)
    assert status == 403
    assert "kinesis-trident ui has printed" in page


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "\xff", "http://a:b:c", "x" * 5000])
def test_what_is_no_origin_changes_nothing(ask: Client, origin: str) -> None:
    cookie, form = ask.log_in()
    body = urlencode({"application": HOSTILE, "action": "retry", "form": form})
    assert ask("/change", "POST", body, Cookie=cookie, Origin=origin)[0] == 403


@pytest.mark.parametrize("port", ["abc", "99999999", "[", "\xb2", "-1"])
def test_a_host_whose_port_is_none_is_answered(ask: Client, port: str) -> None:
    for path in ("/", "/?token=x", f"/?token={TOKEN}", "/app?" + urlencode({"name": HOSTILE})):
        assert ask(path, Host=f"127.0.0.1:{port}")[0] in (200, 303, 400, 403)
    cookie, form = ask.log_in()
    body = urlencode({"application": HOSTILE, "action": "retry", "form": form})
    origin = f"http://127.0.0.1:{port}"
    assert ask("/change", "POST", body, Cookie=cookie, Origin=origin, Host=f"127.0.0.1:{port}")[0] in (
        400,
        403,
    )


def test_a_wrong_token_opens_nothing(ask: Client) -> None:
    status, headers, _ = ask("/?token=" + TOKEN[:-1])
    assert status == 403
    assert "set-cookie" not in headers
    assert 'name="form"' not in ask("/app?" + urlencode({"name": HOSTILE}))[2]


def test_a_change_by_a_link_or_too_long_a_request_is_refused(ask: Client) -> None:
    cookie, form = ask.log_in()
    fields = urlencode({"application": HOSTILE, "action": "retry", "form": form})
    assert ask(f"/change?{fields}", Cookie=cookie)[0] == 405
    status, _, page = ask(
        "/change", "POST", fields + "&x=" + "x" * 70_000, Cookie=cookie, Origin=f"http://{ask.host}"
    )
    assert (status, "Choose fewer records" in page) == (413, True)


def test_without_allow_changes_there_is_nothing_to_change_with(ask_reader: Client) -> None:
    assert ask_reader("/change", "POST", "", Origin=f"http://{ask_reader.host}")[0] == 404
    assert ask_reader("/?token=x")[0] == 403
    page = ask_reader("/app?name=billing")[2]
    assert "<form" not in page
    assert "read-only" in page


def test_the_metrics_are_there_for_prometheus(
    zookeeper: EmbeddedZooKeeper, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ZooKeeperConfig(zookeeper.hosts)
    client = connect(where)
    # A scrape reads all below the root, and other tests have left hundreds below the common one.
    SourceStore(client, Layout(f"/{app}", app, "orders", 1)).epochs.raise_epoch("here", 1, NOW)
    client.stop()
    client.close()
    target = Target(where, f"/{app}", "")
    opened: list[ZooKeeperConfig] = []
    monkeypatch.setattr(kept_client, "connect", lambda config: opened.append(config) or connect(config))
    with serving(Site(StillWatcher(target, 0.2))) as port:
        status, headers, text = [Client(port)("/metrics") for _ in range(3)][-1]
    # A session of the server's, not one a scrape and application.
    assert len(opened) == 1
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert re.search(rf'^kinesis_trident_application_up\{{application="{app}"\}} 1', text, re.MULTILINE)


def test_a_folder_that_could_not_be_read_is_read_once_it_can_be(tmp_path: Path) -> None:
    folder, name = tmp_path / "letters", "shardId-000000000000"
    look, _ = busy_look()
    (part,) = look.parts
    node = DeadLettersNode(count=1, target=str(folder), last=(letter(f"orders/{name}:100"),))
    part = replace(part, snapshot=replace(part.snapshot, dead_letters={name: node}))
    watcher = still({"orders-job": replace(look, parts=(part,))})
    watcher.folders = (str(folder),)
    watcher.read_payloads()
    assert watcher.previews == {}
    writer = DeadLetterWriter(Dead(str(folder), "orders-job"), kinesis=NoKinesis())
    run = Run("100", "100", 1, attempt=4)
    writer.write(stream="orders", txid=7, letters={name: [(run, [records(100, 1)], False)]})
    watcher._folders_read = float("-inf")
    watcher.read_payloads()
    assert watcher.previews == {f"orders/{name}:100": "payload"}


@pytest.mark.parametrize("is_given", [True, False])
def test_payloads_of_every_shard_come_from_the_given_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    folder, names = tmp_path / "letters", [f"shardId-{number:012d}" for number in (0, 1)]
    look, _ = busy_look()
    (part,) = look.parts
    run = Run("100", "100", 1, attempt=4)
    letters = {}
    for name in names:
        writer = DeadLetterWriter(Dead(str(folder), "orders-job"), kinesis=NoKinesis())
        writer.write(stream="orders", txid=7, letters={name: [(run, [records(100, 1)], False)]})
        listed = (letter(f"orders/{name}:100"),)
        letters[name] = DeadLettersNode(count=1, target=str(folder), last=listed)
    part = replace(part, snapshot=replace(part.snapshot, dead_letters=letters))
    watcher = still({"orders-job": replace(look, parts=(part,))})
    watcher.folders = (str(folder),) if is_given else ()
    # Very many others are there, of other batches and applications: none is read, or the page is late.
    for txid in range(8, 40):
        writer.write(stream="orders", txid=txid, letters={names[0]: [(run, [records(100, 1)], False)]})
    for path in list(folder.rglob("*.jsonl")):
        other = folder / "others" / "orders" / path.name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("no letter")
    read: list[str] = []
    read_letters = dead_letters.read_letters
    monkeypatch.setattr(dead_letters, "read_letters", lambda *one: read.append(one[1]) or read_letters(*one))
    watcher.read_payloads()
    assert len(read) == (2 if is_given else 0)
    assert watcher.previews == ({f"orders/{name}:100": "payload" for name in names} if is_given else {})


def test_a_look_at_ten_times_the_shards_takes_ten_times_the_work(
    zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    """Thirty applications of 100 shards each are looked at in 1.6 s: nothing grows faster than the nodes."""
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    for shards in (20, 200):
        store = SourceStore(client, Layout(f"/{app}-{shards}", "billing", "orders", 1))
        epoch = store.epochs.raise_epoch("host", 1, NOW)
        names = [f"shardId-{number:012d}" for number in range(shards)]
        runs = SNAPSHOT.inflight[CHILD].waiting
        held = {
            name: (
                CheckpointNode(checkpoint="5", txid=1, position="AFTER_SEQUENCE_NUMBER 5"),
                InflightNode(txid=1, waiting=runs),
            )
            for name in names
        }
        store.shards.put_lineage(ShardsNode(shards=dict.fromkeys(names, ShardLineage())), epoch)
        store.shards.settle(held, {}, None, SettledNode(txid=1, plan="p"), epoch)
    took = []
    for shards in (20, 200):
        watcher = Watcher(Target(ZooKeeperConfig(zookeeper.hosts), f"/{app}-{shards}", ""))
        watcher.refresh()
        times = []
        for _ in range(3):
            watcher.looks.clear()
            begun = time.process_time()
            watcher.refresh()
            application_values(watcher.looks["billing"])
            times.append(time.process_time() - begun)
        watcher.close()
        took.append(min(times))
    client.stop()
    client.close()
    assert took[1] < 20 * took[0], took


def test_half_requests_are_ended_and_hold_up_nobody(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImpatientProtocol, "seconds", 0.2)
    halves = [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        f"GET /assets/page.js HTTP/1.1\r\nHost: 127.0.0.1:{ask.port}\r\n\r\nGET / HT".encode(),
    ]
    with contextlib.ExitStack() as stack:
        held = []
        for half in halves * 10:
            one = stack.enter_context(socket.create_connection(("127.0.0.1", ask.port), timeout=120))
            one.sendall(half)
            held.append(one)
        assert ask("/")[0] == 200
        # Each is read to its end, which comes although nobody ends it here.
        answers = [b"".join(iter(lambda one=one: one.recv(65_536), b"")) for one in held]
    assert [answer.startswith(b"HTTP/1.1 200") for answer in answers] == [False, False, False, True] * 10


def test_a_change_whose_form_does_not_come_is_ended(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_app, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", ask.port), timeout=120) as half:
        half.sendall(
            f"POST /change HTTP/1.1\r\nHost: 127.0.0.1:{ask.port}\r\nContent-Length: 9\r\n\r\nx".encode()
        )
        assert half.recv(65_536).startswith(b"HTTP/1.1 408")


def test_no_more_pages_listen_than_the_server_bears(ask_reader: Client) -> None:
    request = f"GET /events?name=billing HTTP/1.1\r\nHost: 127.0.0.1:{ask_reader.port}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ask_reader.port), timeout=120))
            for _ in range(80)
        ]
        for one in held:
            one.sendall(request)
        codes = sorted(int(one.recv(12)[9:12]) for one in held)
    assert codes == [200] * 64 + [503] * 16

    def is_free() -> bool:
        with socket.create_connection(("127.0.0.1", ask_reader.port), timeout=120) as one:
            one.sendall(request)
            return one.recv(12).endswith(b"200")

    eventually(is_free, "who has gone is no listener any more")


def test_an_unknown_application_says_so(ask_reader: Client) -> None:
    status, _, page = ask_reader("/app?name=../../etc/passwd")
    assert (status, "There is no such application" in page) == (404, True)


def test_events_carry_the_content_of_the_page(ask_reader: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", ask_reader.port, timeout=120)
    connection.request("GET", "/events?name=billing")
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    line = answer.readline().decode()
    assert "Retrying, by reason" in json.loads(line.removeprefix("data: "))
    connection.close()


def test_the_live_page_of_an_application_that_was_forgotten_says_so() -> None:
    site = site_of(SNAPSHOT)
    with serving(site) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/events?name=billing")
        answer = connection.getresponse()
        assert "Retrying, by reason" in answer.readline().decode()
        del site.watcher.looks["billing"]
        lines = iter(lambda: answer.readline().decode(), "")
        said = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
        connection.close()
    assert "Application billing is not there any more" in said


def test_the_page_replaces_a_client_of_zookeeper_that_has_ended(zookeeper: EmbeddedZooKeeper) -> None:
    watcher = Watcher(Target(ZooKeeperConfig(zookeeper.hosts), "/kinesis-trident", ""))
    with contextlib.closing(watcher):
        for _ in range(2):
            watcher.refresh()
            assert watcher.problem == ""
            watcher._client.get().stop()


def test_a_busy_application_is_shown_with_all_that_it_has() -> None:
    look, previews = busy_look()
    with serving(Site(still({"orders-job": look}, previews))) as port:
        page = Client(port)("/app?name=orders-job")[2]
    for said in (
        "Kinesis throttles the reads of shard shardId-000000000008",
        "stop them, or give this query consumerMode=efo",
        "throttled for 1m 12s",
        "23h 58m",
        "TimeoutError: the billing service did not answer in 5 s",
        "in 11.0 s",
        "&#34;A-18204&#34;",
        "epoch 11 had to stop for epoch 12 on worker-7",
        "ada@ops-1: replay:",
    ):
        assert said in page, said


def test_rates_follow_from_two_looks() -> None:
    history = History()
    history.add(SNAPSHOT, NOW)
    held = SNAPSHOT.inflight[CHILD]
    failed = replace_run(held.waiting[0], NOW + 500)
    grown = replace(
        SNAPSHOT,
        inflight={CHILD: InflightNode(txid=8, waiting=(failed, *held.waiting[1:]), dead=held.dead)},
        checkpoints={
            name: type(node)(checkpoint=node.checkpoint, txid=8, position=node.position, read=node.read + 10)
            for name, node in SNAPSHOT.checkpoints.items()
        },
    )
    history.add(grown, NOW + 2_000)
    first, second = history.samples
    assert (first.read_rate, first.fail_rate) == (None, None)
    assert (second.read_rate, second.fail_rate) == (10.0, 0.5)


def test_the_page_draws_how_far_the_shards_are_apart() -> None:
    history = History()
    for number, by in enumerate((0, 3 * 3_600_000)):
        history.add(apart(by), NOW + 2_000 * number)
    look = ApplicationView("billing", NOW, (part_of(SNAPSHOT, history),))
    (part,) = application_values(look)["parts"]
    curves = {one["title"]: str(one["svg"]) for one in part["curves"]}
    assert 'aria-label="Shards apart: 3h 00m now' in curves["Shards apart"]


def replace_run(run: Run, at: int) -> Run:
    return Run(
        run.first, run.last, run.count, attempt=3, due=run.due, failures=(*run.failures, Noted(at, "x"))
    )


@given(
    st.lists(
        st.tuples(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=2)),
        max_size=12,
        unique_by=lambda x: x[0],
    )
)
def test_any_lineage_can_be_drawn_and_no_two_boxes_overlap(shards: list[tuple[str, list[str]]]) -> None:
    boxes = [Box(name, "open", "lag 1 s", tuple(parents)) for name, parents in shards]
    drawn = str(draw_lineage(boxes))
    corners = re.findall(r'<rect x="([^"]*)" y="([^"]*)"', drawn)
    assert len(corners) == len(boxes)
    by_column: dict[str, list[float]] = {}
    for x, y in corners:
        by_column.setdefault(x, []).append(float(y))
    for column in by_column.values():
        rows = sorted(column)
        assert all(b - a > 46 for a, b in pairwise(rows))


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=30))
def test_a_curve_stays_in_its_frame(values: list[float | None]) -> None:
    drawn = str(draw_curve([(1_000 * at, value) for at, value in enumerate(values)], "Lag", "ms", "lag"))
    for points in re.findall(r'<polyline class="curve" points="([^"]*)"', drawn):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 520
            assert 0 <= y <= 170


def test_a_port_that_is_taken_says_what_to_do(
    zookeeper: EmbeddedZooKeeper, ask_reader: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["ui", "--zookeeper", zookeeper.hosts, "--port", str(ask_reader.port)])
    assert "Choose others with --host and --port" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["ü" * 70, "a\0b", "no-such-host.invalid"])
def test_an_address_that_is_none_says_what_to_do(host: str) -> None:
    with pytest.raises(ConsoleError, match=r"cannot listen at .*\. Choose others"):
        bind(host, 0, "Choose others")


def test_a_missing_extra_is_named(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kinesis_trident.console.commands.ui.find_spec", lambda _name: None)
    with pytest.raises(SystemExit):
        main(["ui", "--zookeeper", zookeeper.hosts])
    assert "pip install 'kinesis-trident[ui]'" in capsys.readouterr().err
