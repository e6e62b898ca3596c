"""A guide with this test's servers in the place of those that it names, and the applications that guides look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from doc_page import ROOT, Page

from kinesis_trident.checkpoint.model.nodes import BatchOutcome
from kinesis_trident.testing import QueryByHand, ScriptedKinesis

__all__ = ["Orders", "Unfinished", "page"]

REASONS = {
    b"broken": "JSONDecodeError: Expecting value",
    b"late": "TimeoutError: the price service does not answer",
}


def page(name: str, folder: Path, hosts: str, kinesis: ScriptedKinesis | None = None, **more: Any) -> Page:
    """A page of docs/, as its reader runs it."""
    ours = {"zk1:2181,zk2:2181,zk3:2181": hosts, "localhost:2181": hosts, "/data": str(folder)}
    if kinesis is not None:
        endpoint = kinesis.endpoint_url
        ours |= {
            '"region", "eu-west-1"': f'"endpointUrl", "{endpoint}"',
            'region_name="eu-west-1"': f'region_name="us-east-1", endpoint_url="{endpoint}"',
            "--region eu-west-1": f"--region us-east-1 --endpoint {endpoint}",
        }
    path = ROOT / "docs" / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    # Only its own names: what is printed gets them back.
    ours = {theirs: mine for theirs, mine in ours.items() if theirs in text}
    names = more.pop("names", {}) | {"__name__": "__main__"}
    return Page(path, folder, names, ours, **more)


class Orders(QueryByHand):
    """A query whose failed records say why."""

    def publish(
        self, rows: Iterable[Any] = (), reason: Callable[[Any], str] = lambda row: REASONS[row.data]
    ) -> BatchOutcome | None:
        return super().publish(rows, reason)

    def deliver(self) -> None:
        """Run a batch, in which the records of `REASONS` fail."""
        self.batch(lambda row: row.data in REASONS)


Unfinished = Callable[[str], Orders]
"""Brings an application to where one record is a dead letter and another one waits for a retry."""
