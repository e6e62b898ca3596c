"""The web page over applications that stand still, and its server in a thread of the test."""

from __future__ import annotations

import html
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from samples_console import NOW, SEQUENCE, SNAPSHOT, pin

from kinesis_trident.checkpoint.model.change_nodes import AuditNode
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import (
    CheckpointNode,
    DeadLetterRecord,
    DeadLettersNode,
    FencedNode,
    InflightNode,
    Plan,
    SettledNode,
    ShardLineage,
)
from kinesis_trident.checkpoint.model.run_status import Seen, StatusNode
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import status_of
from kinesis_trident.console.target import Target
from kinesis_trident.console.web import app as web_app
from kinesis_trident.console.web.app import Site, make_app
from kinesis_trident.console.web.guard import Guard
from kinesis_trident.console.web.history import History
from kinesis_trident.console.web.page import application_values
from kinesis_trident.console.web.server import Server
from kinesis_trident.console.web.watcher import ApplicationView, HomeView, Watcher
from kinesis_trident.tracker.records import Noted, Run

MINUTE = 60_000


@dataclass(slots=True)
class StillWatcher(Watcher):
    """Sees nothing new."""

    def refresh(self) -> None:
        """Leave everything as it is."""


def site_of(
    *snapshots: Snapshot, guard: Guard | None = None, previews: Mapping[str, str] | None = None
) -> Site:
    """A site that shows these snapshots, each of an application of its own."""
    looks = {}
    for one in snapshots:
        history = History()
        history.add(one, NOW)
        looks[one.layout.application] = ApplicationView(one.layout.application, NOW, (part_of(one, history),))
    return Site(still(looks, previews), guard)


def part_of(
    snapshot: Snapshot, history: History | None = None, changes: tuple[AuditNode, ...] = ()
) -> HomeView:
    """A home of an application as it was at `NOW`."""
    return HomeView(snapshot, history or History(), status_of(snapshot, NOW), changes)


def still(looks: dict[str, ApplicationView], previews: Mapping[str, str] | None = None) -> StillWatcher:
    """A watcher whose clock stands at `NOW`."""
    target = Target(ZooKeeperConfig("127.0.0.1:1"), "/kinesis-trident", "")
    return StillWatcher(target, 0.2, lambda: NOW / 1000, looks, previews=dict(previews or {}))


@contextmanager
def serving(site: Site) -> Iterator[int]:
    """Serve a site on the loopback: its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(make_app(site, []), site.watcher.end)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def busy_look() -> tuple[ApplicationView, dict[str, str]]:
    """An application with half an hour of history, and something of everything; and the payloads of its letters."""
    names = [f"shardId-{number:012d}" for number in range(9)]
    parents = {4: (0,), 5: (0,), 6: (1, 2), 7: (5, 6), 8: (3,)}
    drained, closed = {0, 1, 2, 3, 6}, {5}
    shards = {
        name: ShardLineage(
            parents=tuple(names[one] for one in parents.get(number, ())),
            state="drained" if number in drained else "closed" if number in closed else "open",
        )
        for number, name in enumerate(names)
    }
    base = int(SEQUENCE)

    def run(number: int, count: int, due: int, reason: str, attempt: int = 2) -> Run:
        last = str(base + number)
        failures = (Noted(NOW - 20_000, reason),)
        return Run(
            str(base + number + 1 - count), last, count, attempt=attempt, due=NOW + due, failures=failures
        )

    timeout = "TimeoutError: the billing service did not answer in 5 s"
    rate = "HTTPError: 429 Too Many Requests from the currency service"
    letters = [
        (
            "ValueError: amount is '12,50', expected a number",
            '{"order": "A-18204", "amount": "12,50", "currency": "EUR"}',
        ),
        ("KeyError: 'order'", '{"id": 77120, "amount": 18.0}'),
        (
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff",
            "(base64) /9j/4AAQSkZJRgABAQEASABIAAD/2wBDAAYEBQ==",
        ),
    ]
    ids = [f"orders/{names[4]}:{base + 7_000 + 31 * number}" for number in range(len(letters))]
    records = tuple(
        DeadLetterRecord(message_id, 4, reason, NOW - (2 + 3 * n) * MINUTE, 2_310 - n)
        for n, (message_id, (reason, _)) in enumerate(zip(ids, letters, strict=True))
    )
    snapshot = replace(
        SNAPSHOT,
        layout=Layout("/kinesis-trident", "orders-job", "orders", 1),
        epoch=12,
        owner=replace_node(SNAPSHOT.owner, epoch=12, since=NOW - 47 * MINUTE),
        run=replace_node(SNAPSHOT.run, since=NOW - 47 * MINUTE),
        settled=SettledNode(txid=2_318, plan="p7"),
        settled_at=NOW - 2_052,
        batch=replace_node(
            SNAPSHOT.batch,
            plan=Plan(txid=2_319, plan="p8", streams={"orders": 1}, positions={}, read=tuple(names[4:6])),
        ),
        pins={name: replace_node(pin(name, 410), txid=2_319) for name in names[4:6]},
        planned_at=NOW - 2_050,
        read_at=NOW - 900,
        shards=shards,
        checkpoints={
            name: CheckpointNode(
                checkpoint=str(base + 7_919 * number),
                txid=2_318,
                position="SHARD_END"
                if number in drained
                else f"AFTER_SEQUENCE_NUMBER {base + 7_919 * number}",
                read=31_000 + 1_700 * number,
                seen=NOW - 1_000,
            )
            for number, name in enumerate(names)
        },
        inflight={
            names[4]: InflightNode(
                txid=2_318, waiting=(run(9_100, 38, 11_000, timeout), run(9_300, 1, 42_000, rate, 3))
            ),
            names[8]: InflightNode(txid=2_318, waiting=(run(9_500, 12, 19_000, timeout),)),
        },
        dead_letters={names[4]: DeadLettersNode(count=3, target="/mnt/orders/dead-letters", last=records)},
        active=("orders",),
        status=StatusNode(
            epoch=12,
            time=NOW - 1_200,
            settled=2_318,
            seen=NOW - 1_200,
            shards={
                names[8]: Seen(
                    seen=NOW - 74_000, arrival=NOW - 61_000, refused=NOW - 72_000, why="throttled"
                ),
                names[5]: Seen(seen=NOW - 1_200, arrival=NOW - 3_400),
            },
            retention={"orders": 24},
        ),
        takeovers=((NOW - 47 * MINUTE, FencedNode(epoch=11, by_epoch=12, by_host="worker-7", by_pid=4711)),),
    )
    history = History()
    fill(history, snapshot)
    notes = (
        AuditNode(
            time=NOW - 5 * MINUTE, user="ada", host="ops-1", what=f"replay: {ids[2]}", backup="", epoch=0
        ),
    )
    previews = {message_id: payload for message_id, (_, payload) in zip(ids, letters, strict=True)}
    return ApplicationView("orders-job", NOW, (part_of(snapshot, history, notes),)), previews


def fill(history: History, end: Snapshot) -> None:
    """Let the history see half an hour that ends as `end`: a steady stream, a pause, and what it brings about."""
    names, total = list(end.checkpoints), 0
    for back in range(360, -1, -1):
        now = NOW - back * 5_000
        slow = max(0, 150 - abs(back - 150)) / 150
        lag = int(
            1_200
            + 800 * ((back * 7) % 5) / 5
            + 48_000 * slow**3
            + (61_000 - back * 5_000 if back < 12 else 0)
        )
        total += 5 * (400 + back * 37 % 60 - int(330 * slow**3))
        failures = tuple(Noted(now - 1, "x") for _ in range((back * back % 53 < 3) + 2 * (back < 12)))
        status = end.status
        assert status is not None
        look = replace(
            end,
            checkpoints={names[8]: replace_node(end.checkpoints[names[8]], read=total, arrival=now - 900)},
            status=replace_node(status, shards={names[8]: Seen(seen=now, arrival=now - lag)}),
            inflight={names[4]: InflightNode(txid=1, waiting=(Run("1", "9", 9, failures=failures),))},
            dead_letters={},
        )
        history.add(look, now)
    batch = end.batch
    assert batch is not None
    for txid in range(batch.plan.txid - 7, batch.plan.txid):
        planned = NOW - (batch.plan.txid - txid) * 4_300
        shape = txid * 37 % 11
        one = replace(
            end,
            batch=replace_node(batch, plan=replace_node(batch.plan, txid=txid)),
            settled=SettledNode(txid=txid - 1, plan="p"),
            planned_at=planned,
            read_at=planned + 700 + 60 * shape,
            finished_at=planned + 2_400 + 140 * shape,
            finished=True,
            settled_at=planned - 90,
            pins={name: pin(name, 700 + 31 * shape) for name in end.pins},
        )
        history.add(one, NOW)
        history.samples.pop()
    history.add(end, NOW)
    history.samples.pop()


def replace_node(node: Any, **changes: object) -> Any:
    """The node with other values in some fields."""
    return msgspec.structs.replace(node, **changes)


def offered(site: Site, app: str) -> tuple[list[dict[str, str]], str]:
    """The buttons of the page of an application as a new look shows it, and its text."""
    site.watcher.refresh()
    values = application_values(site.watcher.looks[app])
    more = {
        "now": site.now(),
        "problem_of_all": "",
        "allowed": True,
        "form": "f",
        "said": None,
        "previews": {},
    }
    page = web_app._TEMPLATES.get_template("application.html").render(values | more)
    return buttons_of(page), html.unescape(page)


def buttons_of(page: str) -> list[dict[str, str]]:
    """The fields of each form on a page, or in a part of one."""
    return [
        {name: html.unescape(value) for name, value in re.findall('name="([a-z]+)" value="([^"]*)"', form)}
        for form in re.findall("<form.*?</form>", page, re.DOTALL)
    ]
