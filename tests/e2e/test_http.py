"""docs/http.md as it stands: what a service refuses, garbles or does not answer in time comes back alone."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.dataset as ds
import pytest
from doc_blocks import with_ours
from stage import Stage, ended

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"


class Customers(BaseHTTPRequestHandler):
    """Knows all customers; one is always missing, one first fails, one never answers before the test ends.

    Of one it knows no name, and of another it gives no JSON.
    """

    asked: ClassVar[Counter[str]] = Counter()
    over = threading.Event()

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.asked[name] += 1
        if name == "hangs":
            self.over.wait(300)
        wrong = 404 if name == "missing" else 503 if name == "flaky" and self.asked[name] == 1 else None
        known = {"nameless": b"{}", "garbled": b"<html>"}
        body = b"" if wrong else known.get(name, json.dumps({"name": name.title()}).encode())
        self.send_response(wrong or 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Service(ThreadingHTTPServer):
    """Takes all connections that the page makes at a time, also when its thread gets the processor late."""

    request_queue_size = 32


@pytest.fixture
def service() -> Iterator[str]:
    with Service(("127.0.0.1", 0), Customers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        Customers.over.set()
        server.shutdown()


def test_the_page_enriches_a_stream(stage: Stage, service: str) -> None:
    customers = ["ada", "ada", "bob", "missing", "flaky", "hangs", "nameless", "garbled"]
    stage.put(
        json.dumps({"order_id": str(number), "customer_id": name}) for number, name in enumerate(customers)
    )
    ours = {
        '"streamName", "orders"': f'"streamName", {stage.stream!r}',
        '"region", "eu-west-1"': f'"endpointUrl", {stage.endpoint!r}',
        '"enriched-orders"': repr(stage.app),
        "zk1:2181,zk2:2181,zk3:2181": stage.hosts,
        ".load())": '.option("startingPosition", "TRIM_HORIZON").load())',
        '"retryLimit", 10': '"retryLimit", 1',
        "1s..60s x2": "100ms..200ms x2",
        "http://customers.internal/": f"{service}/",
        "s3a://my-bucket": str(stage.folder),
        "s3://my-bucket": str(stage.folder),
        'enriched-orders")': 'enriched-orders", trigger={"availableNow": True})',
    }
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code = with_ours(code, ours)
    names: dict[str, Any] = {"__name__": "__main__", "spark": stage.spark}
    exec(compile(code, "http.md", "exec"), names)
    ended(names["query"])
    rows = ds.dataset(stage.folder / "enriched", partitioning="hive").to_table().to_pylist()
    assert sorted((row["order_id"], row["name"]) for row in rows) == [
        ("0", "Ada"),
        ("1", "Ada"),
        ("2", "Bob"),
        ("4", "Flaky"),
    ]
    letters = {json.loads(letter.data or b"")["order_id"]: letter for letter in stage.letters("dead-letters")}
    assert {order: letter.reasons[-1].reason for order, letter in letters.items()} == {
        "3": "customers.internal: HTTP 404 (in map(enrich))",
        "5": "customers.internal: ReadTimeoutError (in map(enrich))",
        "6": "customers.internal: KeyError (in map(enrich))",
        "7": "customers.internal: JSONDecodeError (in map(enrich))",
    }
    once, again = ("ada", "bob"), ("missing", "flaky", "hangs", "nameless", "garbled")
    assert Customers.asked == dict.fromkeys(once, 1) | dict.fromkeys(again, 2)
