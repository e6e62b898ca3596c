"""The demo's output: progress as ZooKeeper has it, the comparison at the end, and the nodes. Fits 80 columns."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree


@dataclass(frozen=True)
class Truth:
    """The orders in the stream: the amounts of the good ones by id, and the number of bad ones."""

    amounts: dict[str, float]
    bad: int


@dataclass(frozen=True)
class Progress:
    """The progress that ZooKeeper holds. `in_hand` is the batch that is pinned and not settled, if any."""

    table: Table
    read: int
    retrying: int
    in_hand: int | None


def connect(hosts: str) -> KazooClient:
    """Connect to ZooKeeper for the functions below: where a server of an ensemble fails, they go on at another."""
    client = KazooClient(hosts, command_retry={"max_tries": -1, "max_delay": 1.0, "deadline": 120.0})
    client.start()
    return client


def take_progress(client: KazooClient, base: str) -> Progress:
    """Read progress from ZooKeeper below `base`, as anyone can: docs/zookeeper.md describes the nodes."""
    checkpoints, inflight, letters = (
        {name: _read(client, f"{base}/{folder}/{name}") for name in names(client, f"{base}/{folder}")}
        for folder in ("checkpoints", "inflight", "deadletters")
    )
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("shard")
    for name in ("read", "acked", "retrying", "dead letters"):
        table.add_column(name, justify="right")
    table.add_column("checkpoint")
    read = retrying = dead = 0
    for shard, node in sorted(checkpoints.items()):
        waiting = inflight.get(shard, {})
        here = sum(_count(waiting.get(name, ())) for name in ("waiting", "dead"))
        gone = letters.get(shard, {}).get("count", 0)
        name = shard.removeprefix("shardId-").lstrip("0") or "0"
        delivered, checkpoint = node.get("read", 0), node.get("checkpoint") or "-"
        done = delivered - here - gone
        table.add_row(name, f"{delivered:,}", f"{done:,}", f"{here:,}", f"{gone:,}", _short(checkpoint))
        read, retrying, dead = read + delivered, retrying + here, dead + gone
    table.add_section()
    table.add_row("all", f"{read:,}", f"{read - retrying - dead:,}", f"{retrying:,}", f"{dead:,}", "")
    newest = max(map(int, names(client, f"{base}/batches")), default=0)
    settled = _read(client, f"{base}/settled").get("txid", 0)
    pinned = newest > settled and bool(names(client, f"{base}/batches/{newest}"))
    return Progress(table, read, retrying, newest if pinned else None)


def _count(runs: list[dict[str, Any]] | str) -> int:
    """Count the records in runs; many runs are a text: base64 of zlib of JSON, whose fourth column has the counts."""
    if isinstance(runs, str):
        return sum(json.loads(zlib.decompress(base64.b64decode(runs)))["columns"][3])
    return sum(run.get("count", 1) for run in runs)


def names(client: KazooClient, path: str) -> list[str]:
    """Return the names of the nodes below a path, none where there is no such node."""
    try:
        return client.retry(client.get_children, path)
    except NoNodeError:
        return []


def _read(client: KazooClient, path: str) -> dict[str, Any]:
    """Return what a node holds, nothing where there is no such node: the query writes at the same time."""
    try:
        return json.loads(_text(client, path) or "{}")
    except NoNodeError:
        return {}


def _text(client: KazooClient, path: str) -> str:
    return client.retry(client.get, path)[0].decode()


def _short(text: str) -> str:
    """Cut sequence numbers of 56 digits in the middle: their ends tell them apart."""
    return re.sub(r"\d{21,}", lambda number: f"{number[0][:4]}…{number[0][-12:]}", text)


def dead_letters(folder: Path) -> list[dict[str, Any]]:
    """Read all documents of a dead-letter folder."""
    files = sorted(folder.rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def show_result(console: Console, output: Path, truth: Truth, letters: list[dict[str, Any]]) -> bool:
    """Compare what the job wrote with the orders in the stream, and return True if all is as expected."""
    written = _orders_of(output)
    counts = Counter(written.column("order_id").to_pylist())
    ids = Counter(letter["messageId"] for letter in letters)
    total = sum(written.column("amount").to_pylist())
    rows = [
        ("good orders written", f"{len(counts):,}", f"{len(truth.amounts):,}"),
        ("sum of their amounts", f"{total:,.2f}", f"{sum(truth.amounts.values()):,.2f}"),
        ("orders written more than once", str(sum(n > 1 for n in counts.values())), "0"),
        ("orders missing", str(len(truth.amounts.keys() - counts.keys())), "0"),
        ("bad records in the dead letter", str(len(ids)), str(truth.bad)),
        ("dead letters written more than once", str(sum(n > 1 for n in ids.values())), "0"),
    ]
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("computed from the files written")
    table.add_column("found", justify="right")
    table.add_column("expected", justify="right")
    table.add_column("")
    for name, found, wanted in rows:
        table.add_row(name, found, wanted, "[green]ok[/]" if found == wanted else "[red]WRONG[/]")
    console.print(table)
    return all(found == wanted for _, found, wanted in rows)


def _orders_of(output: Path) -> pa.Table:
    """Read the orders that count: of each txid those of its highest epoch, as `write` in orders.py says."""
    newest: dict[Path, Path] = {}
    # A job that is killed between the end of its write and its outcome writes the batch again, with another epoch.
    for epoch in (output / "orders").glob("txid=*/epoch=*"):
        newest[epoch.parent] = max(newest.get(epoch.parent, epoch), epoch, key=_epoch_of)
    files = [str(file) for epoch in newest.values() for file in epoch.glob("*.parquet")]
    return ds.dataset(files, format="parquet").to_table()


def _epoch_of(folder: Path) -> int:
    return int(folder.name.partition("=")[2])


def show_dead_letters(console: Console, letters: list[dict[str, Any]]) -> None:
    """Print the reasons in the dead letter, and the attempts of one record."""
    reasons = Counter(letter["reasons"][-1]["reason"].partition(":")[0] for letter in letters)
    console.print(
        "reasons in the dead letter:", ", ".join(f"{name} ({n})" for name, n in reasons.most_common())
    )
    if letters:
        first = letters[0]
        console.print(
            Text(f"one of them, {_short(first['messageId'])}, was delivered {first['attempts']} times:")
        )
        for one in first["reasons"]:
            time = one["time"].partition("T")[2].partition(".")[0]
            console.print(Text(f"  {time}  {one['reason']}"), no_wrap=True, overflow="ellipsis")


def tree(client: KazooClient, base: str) -> Tree:
    """Show the nodes in ZooKeeper, one per line: of a folder its first node, and the number of the others."""
    root = Tree(Text(base))
    for name in sorted(names(client, base)):
        path = f"{base}/{name}"
        below = sorted(names(client, path))
        data = _text(client, path)
        if not below:
            root.add(_node(name, data or "(empty)"))
            continue
        branch = root.add(name)
        branch.add(_node(below[0], _text(client, f"{path}/{below[0]}")))
        if below[1:]:
            branch.add(Text(f"{len(below) - 1} more", style="dim"))
    return root


def _node(name: str, data: str) -> Text:
    return Text(f"{name}  ", no_wrap=True, overflow="ellipsis").append(_short(data), style="dim")
