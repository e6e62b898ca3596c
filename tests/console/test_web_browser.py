"""The page in a browser: an application lives its life, and the page shows it without being loaded again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from kinesis_trident.testing import DeliveredRow, QueryByHand

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

IMAGES = Path(__file__).parents[2] / "docs" / "images"
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
APPLICATION = "orders-job"

# What playwright waits for at most, in milliseconds.
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def start_page(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[Callable[..., str]]:
    """`start_page("--allow-changes") -> address`, for the applications below the root `/<app>`."""
    with ExitStack() as ending:

        def start(*arguments: str) -> str:
            where = ["--zookeeper", zookeeper.hosts, "--root", f"/{app}"]
            command = [sys.executable, "-m", "kinesis_trident.console.cli", "ui", *where, "--port", "0"]
            code = "from kinesis_trident.console.cli import main; main()"
            command[1:3] = ["-c", code]
            process = subprocess.Popen(
                [*command, "--refresh", "0.3", *arguments], stdout=subprocess.PIPE, text=True, env=os.environ
            )
            ending.callback(process.wait)
            ending.callback(process.terminate)
            assert process.stdout is not None
            ending.callback(process.stdout.close)
            (address,) = re.findall(r"http://\S+?(?=;)", process.stdout.readline())
            return address

        yield start


def row(number: int) -> str:
    return json.dumps({"order": f"A-{1000 + number}", "amount": 20 + number})


def is_bad(row: DeliveredRow) -> bool:
    return b"amount" not in row.data


def watch(context: BrowserContext, problems: list[str]) -> Page:
    page = context.new_page()

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            problems.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    return page


def test_a_life_is_shown_while_it_is_lived(
    browser: Browser,
    start_page: Callable[..., str],
    zookeeper: EmbeddedZooKeeper,
    kinesis: KinesisClient,
    kinesis_server: EmbeddedKinesis,
    make_stream: Callable[..., str],
    app: str,
    tmp_path: Path,
) -> None:
    stream = make_stream(2)
    options = {
        "streamName": stream,
        "endpointUrl": kinesis_server.endpoint_url,
        "region": "us-east-1",
        "applicationName": APPLICATION,
        "zookeeper.hosts": zookeeper.hosts,
        "zookeeper.root": f"/{app}",
        "startingPosition": "TRIM_HORIZON",
        "minFetchPeriod": "0ms",
        "describeShardInterval": "1ms",
        "retryLimit": "1",
        "retryBackoff": "1ms..1ms x1",
        "deadLetter": str(tmp_path / "letters"),
    }

    def put(*payloads: str) -> None:
        kinesis.put_records(
            StreamName=stream,
            Records=[{"Data": text.encode(), "PartitionKey": str(n)} for n, text in enumerate(payloads)],
        )

    def run(fails: Callable[[DeliveredRow], bool] = is_bad) -> None:
        for _ in range(20):
            if not query.batch(fails):
                pass

    put(*map(row, range(40)))
    query = QueryByHand.start(options)
    query.batch(is_bad)
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = watch(context, problems)
    page.goto(start_page("--allow-changes"))
    page.get_by_role("link", name=APPLICATION).click()
    expect(page.locator("#live")).to_have_text("live")
    kinesis.split_shard(
        StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
    )
    put(*map(row, range(40, 80)), json.dumps({"order": "A-1080", "note": HOSTILE}))
    while not query.store.shards.dead_letters():
        put(row(1))
        query.batch(is_bad)
    expect(page.locator("svg.lineage g.open")).to_have_count(3)
    expect(page.locator("td.payload code").first).to_contain_text("onerror")
    page.screenshot(path=tmp_path / "one.png", full_page=True)
    page.get_by_role("button", name="Replay").first.click()
    expect(page.get_by_text("1 record will be delivered again")).to_be_visible()
    put(row(2))
    query.batch(is_bad)
    page.screenshot(path="/tmp/web_one.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    page.screenshot(path="/tmp/web_dark.png", full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="light")
    page.screenshot(path="/tmp/web_phone.png", full_page=True)
    page.goto(page.url.partition("/app")[0])
    page.screenshot(path="/tmp/web_list.png", full_page=True)
    query.end()
    assert problems == []
