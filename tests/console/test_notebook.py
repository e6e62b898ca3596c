"""Test what the last cell of a notebook shows."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from samples_console import NOW, SNAPSHOT

from kinesis_trident import ApplicationStatus, OptionsError, status
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.console.render import json_line
from kinesis_trident.console.status import status_of
from kinesis_trident.console.target import ConsoleError


class Balanced(HTMLParser):
    """Checks that what is opened is closed, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_the_table_says_what_the_command_says() -> None:
    part = status_of(SNAPSHOT, NOW)
    first, *others = part.findings
    hostile = msgspec.structs.replace(first, sentence="<script>\x1b[2J")
    part = msgspec.structs.replace(part, findings=(hostile, *others))
    shown = ApplicationStatus([part], NOW)
    page = Balanced()
    page.feed(shown._repr_html_())
    assert page.open == []
    for text in (page.text, repr(shown)):
        assert re.search(r"epoch 3 on worker-7, pid 4711, for 1m 00s", text)
        assert r"<script>\x1b[2J" in text
        assert "kinesis-trident dead-letters billing" in text
    assert shown.parts == [json.loads(json_line(part))]
    assert shown.findings == shown.parts[0]["findings"]


def test_an_application_is_looked_at_from_a_program(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    SourceStore(client, Layout("/kinesis-trident", app, "orders", 1)).epochs.raise_epoch(
        "worker-7", 4711, NOW
    )
    # The options of the query as they are.
    seen = status(app, {"zookeeper.hosts": zookeeper.hosts, "streamName": "orders", "retryLimit": "3"})
    assert (seen.parts[0]["application"], seen.parts[0]["connected"]) == (app, True)
    assert "epoch 1 on worker-7" in repr(seen)
    client.stop()
    client.close()
    with pytest.raises(ConsoleError, match=r"needs the option zookeeper\.hosts"):
        status(app, {})
    with pytest.raises(OptionsError, match=r"Did you mean zookeeper\.hosts"):
        status(app, {"zookeper.hosts": "x"})
    with pytest.raises(ConsoleError, match="there is no application 'nobody'"):
        status("nobody", {"zookeeper.hosts": zookeeper.hosts})
