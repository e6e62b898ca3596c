"""The page in a browser: an application lives its life, and the page shows it without being loaded again.

`SCREENSHOTS=1` keeps the pictures in docs/images.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from samples_console import CHILD, NOW, SNAPSHOT
from web_site import busy_look, part_of, replace_node, serving, still

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import BatchOutcome
from kinesis_trident.console.web.app import Site
from kinesis_trident.console.web.watcher import ApplicationView
from kinesis_trident.testing import MemoryKinesis, QueryByHand, SparkCheckpoint

ROOT = Path(__file__).parents[2]
APPLICATION = "orders-job"
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"

expect.set_options(timeout=60_000)


def why(row: Any) -> str:
    order = json.loads(row.data)
    if "amount" not in order:
        return f"KeyError: 'amount' of {order['order']}, note {order['note']}"
    return "TimeoutError: the billing service did not answer in 5 s" if order["amount"] < 0 else ""


class Running(QueryByHand):
    """A life of a query that goes on by itself; what is not JSON with an amount fails, each row for its reason."""

    def publish(self, rows: Iterable[Any] = (), reason: Callable[[Any], str] = why) -> BatchOutcome | None:
        return super().publish(rows, reason)

    def go_on(self) -> None:
        self._paused = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        while not self._paused.is_set():
            if self.in_hand is not None or self.plan() is not None:
                self.batch(lambda row: bool(why(row)))

    def pause(self) -> None:
        self._paused.set()
        self._thread.join()


def order(number: int, **values: object) -> str:
    return json.dumps({"order": f"A-{1000 + number}", **(values or {"amount": 20 + number})})


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def address(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[str]:
    """Return where the page is, of the applications below `/<app>`, with the token."""
    where = ["--zookeeper", zookeeper.hosts, "--root", f"/{app}", "--port", "0", "--refresh", "0.3"]
    where += ["--letters", str(tmp_path / "letters")]
    command = [sys.executable, "-c", "from kinesis_trident.console.cli import main; main()", "ui", *where]
    with (
        subprocess.Popen([*command, "--allow-changes"], stdout=subprocess.PIPE, text=True) as process,
        ExitStack() as ending,
    ):
        ending.callback(process.terminate)
        assert process.stdout is not None
        (found,) = re.findall(r"http://\S+?(?=;)", process.stdout.readline())
        yield found


@pytest.fixture
def start_query(zookeeper: EmbeddedZooKeeper, app: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`start_query(kinesis, **options)`: a life that goes on until the end of the test, or its `pause`."""
    checkpoint = SparkCheckpoint()
    with ExitStack() as ending:

        def start(kinesis: MemoryKinesis, **options: str) -> Running:
            query = Running.start(
                {
                    "streamName": "orders",
                    "region": "us-east-1",
                    "applicationName": APPLICATION,
                    "zookeeper.hosts": zookeeper.hosts,
                    "zookeeper.root": f"/{app}",
                    "startingPosition": "TRIM_HORIZON",
                    "minFetchPeriod": "0ms",
                    "describeShardInterval": "100ms",
                    "retryLimit": "1",
                    "deadLetter": str(tmp_path / "letters"),
                }
                | options,
                kinesis,
                checkpoint=checkpoint,
            )
            ending.callback(query.end)
            query.go_on()
            ending.callback(query.pause)
            return query

        yield start


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page of all applications, which must be content with itself: nothing in the console, no error."""
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            problems.append(message.text)

    with browser.new_context(viewport={"width": 1280, "height": 900}, locale="en") as context:
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        yield page
        assert page.title() != "run"
    assert problems == []


def picture(page: Page, tmp_path: Path, name: str) -> None:
    folder = ROOT / "docs" / "images" if os.environ.get("SCREENSHOTS") else tmp_path
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=folder / f"{name}.png", full_page=True)


def test_a_life_is_shown_while_it_is_lived(
    page: Page,
    start_query: Callable[..., Running],
    tmp_path: Path,
) -> None:
    # In memory, because moto's closed shards never end.
    kinesis = MemoryKinesis("orders", 2)

    def put(*payloads: str) -> None:
        kinesis.put_records("orders", [(text.encode(), text) for text in payloads])

    put(*map(order, range(40)))
    query = start_query(kinesis, retryBackoff="1ms..1ms x1")

    # It shows an application that came after it, and then whatever happens.
    page.get_by_role("link", name=APPLICATION).click()
    expect(page.locator("#live")).to_have_text("live")
    shards = page.locator("svg.lineage g.shard")
    expect(shards).to_have_count(2)
    _, upper = kinesis.split("shardId-000000000000")
    put(*map(order, range(40, 80)))
    expect(shards).to_have_count(4)
    expect(page.locator("svg.lineage g.drained")).to_have_count(1)
    kinesis.merge(upper, "shardId-000000000001")
    expect(shards).to_have_count(5)

    # A poison record, whose payload and reason are a script.
    put(order(80, note=HOSTILE))
    letters = page.get_by_role("region", name="Dead letters").locator("tbody tr")
    expect(letters.locator(".payload")).to_contain_text("onerror")
    expect(letters.locator(".reason")).to_contain_text("<script>")
    warnings = page.locator(".findings .warning")
    expect(warnings.locator(".sentence")).to_contain_text(
        "1 record was dead-lettered or skipped so far, the last"
    )

    # Another process takes over, and lets failed records wait.
    query.pause()
    successor = start_query(kinesis, retryBackoff="10m..10m x1")
    with pytest.raises(FencedError):
        query.plan()
    takeover = warnings.filter(has_text="had to stop for a newer one")
    expect(takeover.locator(".remedy")).to_contain_text("give each its own")
    put(*map(order, range(80, 120)), *(order(n, amount=-n) for n in range(120, 123)))
    reasons = page.get_by_role("region", name="Reasons of retries").locator("tbody tr")
    expect(reasons).to_contain_text("TimeoutError: the billing service")
    page.get_by_text("Each record that waits").click()
    put(order(124, amount=-124))
    expect(reasons.locator("td.n").first).to_have_text("4")
    # What the reader has folded out stays so.
    expect(page.get_by_role("button", name="Skip to dead letter")).to_have_count(4)
    expect(page.get_by_role("button", name="Skip to dead letter").first).to_be_visible()

    # A record that waits is given up, while the query runs: it asks first.
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    page.get_by_role("button", name="Skip to dead letter").first.click()
    expect(page.get_by_text("Done: 1 record will be dead-lettered")).to_be_visible()
    assert asked == ["Dead-letter this record without further attempts?"]
    expect(letters).to_have_count(2)
    # The page was loaded again.
    page.get_by_text("Each record that waits").click()
    expect(page.get_by_role("button", name="Skip to dead letter")).to_have_count(3)

    # The keyboard alone: replay the first dead letter.
    page.get_by_role("region", name="Dead letters").locator("tr", has_text="onerror").get_by_role(
        "button", name="Replay"
    ).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Done: 1 record will be delivered again")).to_be_visible()
    expect(reasons).to_have_count(2)
    expect(page.locator("#live")).to_have_text("live")
    successor.pause()


def test_long_names_and_ranges_of_records_leave_room_for_the_rest(browser: Browser) -> None:
    name = "an-application-of-a-team-that-names-everything-" * 2
    (node,) = SNAPSHOT.dead_letters.values()
    numbers = f"{10**55 + 7}..{10**55 + 9}"
    letter = replace_node(
        node.last[0], message_id=f"orders/shardId-000000000004:{numbers}", count=3, reason="x" * 300
    )
    snapshot = replace(
        SNAPSHOT,
        layout=Layout("/kinesis-trident", name, "orders", 1),
        dead_letters={CHILD: replace_node(node, last=(letter,))},
    )
    site = Site(still({name: ApplicationView(name, NOW, (part_of(snapshot),))}))
    with serving(site) as port, browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        # The page replaces what it shows as news comes: an element that was just replaced has no box.
        expect(page.locator("#live")).to_have_text("live")
        pill = page.locator(".card .pill").bounding_box()
        assert pill is not None
        assert pill["height"] < 40
        page.goto(f"http://127.0.0.1:{port}/app?name={name}")
        letters = page.get_by_role("region", name="Dead letters")
        expect(letters).to_contain_text("(3 records)")
        assert letters.evaluate("one => one.scrollWidth - one.clientWidth") <= 0


def test_a_phone_shows_why_a_shard_reads_nothing(browser: Browser) -> None:
    why = "12 groups of failed neighbours wait for a retry, and maxRetryingRecords is 12"
    held = replace_node(SNAPSHOT.inflight[CHILD], blocked=why)
    blocked = replace(SNAPSHOT, inflight=dict(SNAPSHOT.inflight) | {CHILD: held})
    site = Site(still({"billing": ApplicationView("billing", NOW, (part_of(blocked),))}, {}))
    with serving(site) as port, browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/app?name=billing")
        reason = page.locator(".shards .state.bad", has_text=why)
        expect(reason).to_be_visible()
        box = reason.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


@pytest.mark.long
def test_pictures(browser: Browser, tmp_path: Path) -> None:
    """What the page shows is checked by the test above; these are for docs/images, also of a phone."""
    look, previews = busy_look()
    stopped = replace(
        SNAPSHOT, layout=Layout("/kinesis-trident", "clicks", "clicks", 1), streams=("clicks",), owner=None
    )
    looks = {
        one.layout.application: ApplicationView(one.layout.application, NOW, (part_of(one),))
        for one in (SNAPSHOT, stopped)
    }
    site = Site(still(looks | {"orders-job": look}, previews))
    with serving(site) as port, browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/app?name=orders-job")
        expect(page.locator("#live")).to_have_text("live")
        grounds = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            picture(page, tmp_path, f"ui-application-{scheme}")
        assert len(set(grounds)) == 2
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        picture(page, tmp_path, "ui-phone-light")
        page.set_viewport_size({"width": 1280, "height": 480})
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#live")).to_have_text("live")
        picture(page, tmp_path, "ui-list-light")
