"""The demo: the orders job on real servers, killed the hard way half-way, with the result checked at the end.

    python examples/demo.py            # everything embedded: ZooKeeper, Kinesis, Spark
    python examples/demo.py --wait     # ... and the servers stay up at the end, to look around
    python examples/demo.py --zookeeper zk1:2181 --endpoint localstack

Of 20,000 orders 1 % cannot be parsed, and 1 % fail twice and then succeed. Exits with 1 when the result is not what
it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import psutil
from demo_view import Truth, dead_letters, show_dead_letters, show_result, take_progress, tree
from kazoo.client import KazooClient
from localstack_client.config import get_service_endpoint
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kinesis_trident import ensure_java
from kinesis_trident.testing import EmbeddedKinesis, EmbeddedZooKeeper

APPLICATION = "orders-demo"
REGION = "us-east-1"
SHARDS = 4
BATCHES = 8
DEADLINE = 600.0
"""Seconds for the job, both its lives together."""


def orders(count: int, seed: int) -> tuple[list[tuple[str, bytes]], Truth]:
    """Orders as (key, data): every 100th cannot be parsed, every 100th (another one) fails twice."""
    rng = random.Random(seed)
    records, amounts = [], {}
    for number in range(count):
        order_id = f"order-{number:06d}"
        amount = round(rng.uniform(1, 500), 2)
        order = {"order_id": order_id, "amount": amount, "flaky": number % 100 == 50}
        data = json.dumps(order)
        if number % 100 == 0:
            data = data[: len(data) // 2]
        else:
            amounts[order_id] = amount
        records.append((order_id, data.encode()))
    return records, Truth(amounts, count - len(amounts))


def fill(kinesis, stream: str, records: list[tuple[str, bytes]]) -> None:  # type: ignore[no-untyped-def]
    """Make the stream and put the orders into it."""
    kinesis.create_stream(StreamName=stream, ShardCount=SHARDS)
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    for at in range(0, len(records), 500):
        page = [{"PartitionKey": key, "Data": data} for key, data in records[at : at + 500]]
        while page:
            answer = kinesis.put_records(StreamName=stream, Records=page)
            page = [one for one, put in zip(page, answer["Records"], strict=True) if "ErrorCode" in put]


class Job:
    """The orders job as a process of its own, with its JVM and Python workers."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the driver."""
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches the demo alone, which ends the job.
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    @property
    def ended(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll() if self._process else None

    def kill(self) -> int:
        """SIGKILL to the driver, its JVM and all Python workers: nobody gets to say goodbye. Returns how many."""
        if self._process is None or self._process.poll() is not None:
            return 0
        root = psutil.Process(self._process.pid)
        tree: set[psutil.Process] = set()
        # Stopped ones start no others, so this comes to an end.
        while found := {root, *root.children(recursive=True)} - tree:
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)
            tree |= found
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        return len(tree)

    def end(self) -> int:
        """Ask it to end after the batch in hand."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=300)

    def tail(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-3000:]


class Steps:
    """What happens, numbered, one line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = 0

    def say(self, text: str) -> None:
        """Print the next step."""
        self._number += 1
        self._console.print(f"[bold]{self._number}.[/] {text}")

    def add(self, text: str) -> None:
        """Print what else there is to say of it."""
        self._console.print(f"   {text}")


def watch(console: Console, steps: Steps, client: KazooClient, base: str, job: Job, total: int) -> None:
    """Show progress, kill the job half-way in the midst of a batch, start it again, and return at its end."""
    state, killed_at = "Spark is starting ...", 0
    deadline = time.monotonic() + DEADLINE
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            progress = take_progress(client, base)
            if progress.read > killed_at:
                state = ""
            live.update(Group(*([progress.table] if progress.read else []), Text(state, style="dim")))
            # Between two batches little would be at stake; from three quarters on it is done all the same.
            if not killed_at and progress.read >= total * (0.5 if progress.in_hand else 0.75):
                count = job.kill()
                killed_at, state = progress.read, "Spark is starting again ..."
                steps.say(f"{progress.read:,} are read: SIGKILL to the driver, its JVM and workers")
                hand = f"batch {progress.in_hand} was in hand" if progress.in_hand else "no batch was in hand"
                steps.add(f"{count} processes are gone; {hand}")
                steps.say("the same command again: what was in hand is replayed with the same rows")
                job.start()
            if progress.read >= total and not progress.retrying:
                return
            if job.ended is not None or time.monotonic() > deadline:
                why = f"the job ended with {job.ended}" if job.ended is not None else "not done in time"
                sys.exit(f"the demo failed: {why}\n{job.tail()}")
            time.sleep(0.1)


@contextlib.contextmanager
def servers(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """ZooKeeper's hosts and Kinesis's endpoint: those asked for, else embedded ones."""
    with contextlib.ExitStack() as stack:
        hosts = asked.zookeeper or stack.enter_context(EmbeddedZooKeeper()).hosts
        endpoint = asked.endpoint or stack.enter_context(EmbeddedKinesis()).endpoint_url
        yield hosts, endpoint


def show(asked: argparse.Namespace, console: Console, output: Path, hosts: str, endpoint: str) -> bool:
    """The demo on running servers; whether the result is right."""
    steps = Steps(console)
    steps.say(f"ZooKeeper is at {hosts}, Kinesis at {endpoint}")
    url = get_service_endpoint("kinesis") if endpoint == "localstack" else endpoint
    kinesis = boto3.client("kinesis", endpoint_url=url, region_name=REGION)
    stream = f"orders-{uuid.uuid4().hex[:8]}"
    records, truth = orders(asked.orders, seed=7)
    steps.say(f"{len(records):,} orders go into stream {stream} of {SHARDS} shards")
    steps.add(f"{truth.bad} of them cannot be parsed, as many others fail twice and then succeed")
    fill(kinesis, stream, records)
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    created = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
    base = f"/kinesis-trident/{APPLICATION}/{stream}@{created}"
    job = Job(
        [
            sys.executable,
            str(Path(__file__).with_name("orders.py")),
            *("--stream", stream, "--application", APPLICATION, "--zookeeper", hosts),
            *("--endpoint", endpoint, "--region", REGION, "--output", str(output)),
            *("--records-per-batch", str(max(SHARDS, asked.orders // BATCHES))),
        ],
        output / "job.log",
    )
    client = KazooClient(hosts)
    client.start()
    try:
        steps.say("the job starts: examples/orders.py, a Spark driver with its JVM and workers")
        job.start()
        watch(console, steps, client, base, job, len(records))
        steps.say("every order is acked or in the dead letter: the job is asked to end")
        code = job.end()
        console.print(take_progress(client, base).table, "")
        letters = dead_letters(output / "dead-letters")
        good = show_result(console, output, truth, letters) and code == 0
        console.print()
        show_dead_letters(console, letters)
        console.print("\nwhat stands in ZooKeeper now:")
        console.print(tree(client, base))
        if asked.wait:
            command = os.path.relpath(Path(sys.executable).with_name("kinesis-trident"))
            console.print("\nlook for yourself, in another terminal:")
            for view in ("checkpoints", "dead-letters"):
                console.print(Text(f"  {command} {view} {APPLICATION} --zookeeper {hosts}"), soft_wrap=True)
            node = f"{base}/checkpoints/{min(client.get_children(f'{base}/checkpoints'))}"
            console.print(Text(f"  zkCli.sh -server {hosts} get '{node}'"), soft_wrap=True)
            console.input("the servers are up; press Enter to end ")
        return good
    finally:
        client.stop()
        client.close()
        job.kill()


def main() -> None:
    """Run the demo; exits with 1 when the result is not what it must be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", help="hosts of a running ZooKeeper; embedded by default")
    parser.add_argument(
        "--endpoint", help="endpoint of a running Kinesis, or localstack; embedded by default"
    )
    parser.add_argument("--orders", type=int, default=20_000, help="how many; at least 800")
    parser.add_argument(
        "--wait", action="store_true", help="keep the servers up at the end, until Enter is pressed"
    )
    asked = parser.parse_args()
    for name, value in {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo"}.items():
        os.environ.setdefault(name, value)
    console = Console(highlight=False)
    began = time.monotonic()
    ensure_java()
    with (
        tempfile.TemporaryDirectory(prefix="kinesis-trident-demo-") as folder,
        servers(asked) as (hosts, endpoint),
    ):
        good = show(asked, console, Path(folder), hosts, endpoint)
    verdict = "[green]all as it must be[/]" if good else "[red]NOT as it must be[/]"
    console.print(f"\n{verdict}, after {time.monotonic() - began:.0f} s")
    if not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
