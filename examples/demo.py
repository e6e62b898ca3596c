"""The demo: the orders job on real servers, killed with SIGKILL half-way, with its result checked at the end.

    python examples/demo.py            # everything embedded: ZooKeeper, Kinesis, Spark
    python examples/demo.py --ui       # ... with the web page, in a browser if there is one
    python examples/demo.py --wait     # ... and the servers keep running at the end, to look around
    python examples/demo.py --zookeeper zk1:2181 --endpoint localstack

Of 20,000 orders 1 % cannot be parsed, and another 1 % fail twice and then succeed. Exits with 1 if the result is not
as expected.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import boto3
import psutil
from demo_view import Truth, connect, dead_letters, names, show_dead_letters, show_result, take_progress, tree
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
"""Seconds for both runs of the job together."""


def orders(count: int, seed: int) -> tuple[list[tuple[str, bytes]], Truth]:
    """Make orders as (key, data): one in 100 cannot be parsed, another one in 100 fails twice."""
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
    """Create the stream and write the orders to it."""
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
        """The exit code, or None while it runs."""
        return self._process.poll() if self._process else None

    def kill(self) -> int:
        """SIGKILL to the driver, its JVM and all Python workers: no process can clean up. Return how many."""
        if self._process is None or self._process.poll() is not None:
            return 0
        root = psutil.Process(self._process.pid)
        tree: set[psutil.Process] = set()
        # A stopped process starts no others, so this loop ends.
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
        """Ask it to end after the current batch."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=300)

    def tail(self) -> str:
        """Return the end of what it printed."""
        return self._log.read_text(errors="replace")[-3000:]


class WebPage:
    """`kinesis-trident ui` as a process of its own, with its address."""

    def __init__(self, hosts: str, letters: Path) -> None:
        program = str(Path(sys.executable).with_name("kinesis-trident"))
        # A session of its own, as the job has: the page stays until the demo ends it.
        self._process = subprocess.Popen(
            [
                program,
                "ui",
                "--zookeeper",
                hosts,
                "--port",
                "0",
                "--refresh",
                "0.5",
                "--letters",
                str(letters),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r"http://\S+?(?=;)", said)
        if found is None:
            sys.exit(f"the web page did not start: {said.strip() or 'it said nothing'}")
        self.address = found[0]

    def show(self, application: str) -> None:
        """Open the page of an application where there is a desktop; a browser in the terminal would hide the demo."""
        if (
            os.environ.get("DISPLAY")
            or os.environ.get("WAYLAND_DISPLAY")
            or sys.platform in ("darwin", "win32")
        ):
            # It answers False where there is no browser: the address is printed anyway.
            webbrowser.open(f"{self.address}app?name={application}")

    def end(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(timeout=60)


class Steps:
    """Prints what happens as numbered lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = 0

    def say(self, text: str) -> None:
        """Print the next step."""
        self._number += 1
        self._console.print(f"[bold]{self._number}.[/] {text}")

    def add(self, text: str) -> None:
        """Print one more line about this step."""
        self._console.print(f"   {text}")


def watch(
    console: Console,
    steps: Steps,
    client: KazooClient,
    base: str,
    job: Job,
    total: int,
    page: WebPage | None,
) -> None:
    """Show progress, kill the job half-way in the midst of a batch, start it again, and return at its end."""
    state, killed_at, shown = "Spark is starting ...", 0, False
    deadline = time.monotonic() + DEADLINE
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            progress = take_progress(client, base)
            if progress.read > killed_at:
                state = ""
            if page is not None and progress.read and not shown:
                # The application has a page once its first batch is settled.
                page.show(APPLICATION)
                shown = True
            live.update(Group(*([progress.table] if progress.read else []), Text(state, style="dim")))
            if progress.read >= total and not progress.retrying:
                if not killed_at:
                    steps.say(
                        "the job was done before it could be killed: this machine stood still meanwhile"
                    )
                return
            # A kill between two batches proves little; from three quarters on the job is killed all the same.
            if not killed_at and progress.read >= total * (0.5 if progress.in_hand else 0.75):
                count = job.kill()
                killed_at, state = progress.read, "Spark is starting again ..."
                steps.say(f"{progress.read:,} orders are read: SIGKILL to the driver, its JVM and workers")
                hand = (
                    f"batch {progress.in_hand} was unfinished"
                    if progress.in_hand
                    else "no batch was unfinished"
                )
                steps.add(f"{count} processes are killed; {hand}")
                steps.say("the same command again: the unfinished batch is replayed with the same rows")
                job.start()
            if job.ended is not None or time.monotonic() > deadline:
                why = (
                    f"the job exited with code {job.ended}"
                    if job.ended is not None
                    else f"the job was not done after {DEADLINE:.0f} s"
                )
                sys.exit(f"the demo failed: {why}\n{job.tail()}")
            time.sleep(0.1)


@contextlib.contextmanager
def servers(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield ZooKeeper's hosts and Kinesis's endpoint: those asked for, or embedded ones."""
    with contextlib.ExitStack() as stack:
        hosts = asked.zookeeper or stack.enter_context(EmbeddedZooKeeper()).hosts
        endpoint = asked.endpoint or stack.enter_context(EmbeddedKinesis()).endpoint_url
        yield hosts, endpoint


def show(
    asked: argparse.Namespace, console: Console, output: Path, hosts: str, endpoint: str, page: WebPage | None
) -> bool:
    """Run the demo on running servers, and return True if the result is right."""
    steps = Steps(console)
    steps.say(f"ZooKeeper is at {hosts}, Kinesis at {endpoint}")
    if page is not None:
        steps.add(f"the web page is at {page.address}")
    url = get_service_endpoint("kinesis") if endpoint == "localstack" else endpoint
    kinesis = boto3.client("kinesis", endpoint_url=url, region_name=REGION)
    stream = f"orders-{uuid.uuid4().hex[:8]}"
    records, truth = orders(asked.orders, seed=7)
    steps.say(f"{len(records):,} orders are written to stream {stream}, which has {SHARDS} shards")
    steps.add(f"{truth.bad} of them cannot be parsed; another {truth.bad} fail twice, then succeed")
    fill(kinesis, stream, records)
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    created = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
    base = f"/kinesis-trident/{APPLICATION}/{stream}@{created}"
    job = Job(
        [
            sys.executable,
            str(Path(__file__).with_name("orders.py")),
            *("--stream", stream, "--application", APPLICATION, "--zookeeper", hosts),
            *("--endpoint", endpoint, "--region", REGION, "--output", str(output), "--master", asked.master),
            *("--records-per-batch", str(max(SHARDS, asked.orders // BATCHES))),
        ],
        output / "job.log",
    )
    client = connect(hosts)
    try:
        steps.say("the job starts: examples/orders.py, a Spark driver with its JVM and workers")
        job.start()
        watch(console, steps, client, base, job, len(records), page)
        steps.say("every order is acked or in the dead letter: SIGTERM asks the job to stop")
        code = job.end()
        if code:
            console.print(f"the job exited with code {code}:\n{job.tail()}", markup=False)
        console.print(take_progress(client, base).table, "")
        letters = dead_letters(output / "dead-letters")
        good = show_result(console, output, truth, letters) and code == 0
        console.print()
        show_dead_letters(console, letters)
        console.print("\nZooKeeper now holds:")
        console.print(tree(client, base))
        if page is not None:
            console.print(f"\nthe web page stays at {page.address}app?name={APPLICATION}")
            console.print("(the job has ended, so the page says that no run is connected)")
        if asked.wait or page is not None:
            command = os.path.relpath(Path(sys.executable).with_name("kinesis-trident"))
            console.print("\nto look for yourself, run in another terminal:")
            for view in ("checkpoints", "dead-letters"):
                console.print(Text(f"  {command} {view} {APPLICATION} --zookeeper {hosts}"), soft_wrap=True)
            node = f"{base}/checkpoints/{min(names(client, f'{base}/checkpoints'))}"
            console.print(Text(f"  zkCli.sh -server {hosts} get '{node}'"), soft_wrap=True)
            with contextlib.suppress(EOFError, KeyboardInterrupt):
                console.input("the servers keep running; press Enter or Ctrl-C to stop them ")
        return good
    finally:
        client.stop()
        client.close()
        job.kill()


def main() -> None:
    """Run the demo; exit with 1 if the result is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", help="hosts of a running ZooKeeper; embedded by default")
    parser.add_argument(
        "--endpoint", help="endpoint of a running Kinesis, or localstack; embedded by default"
    )
    parser.add_argument(
        "--master",
        default="local[2]",
        help="the Spark that runs the job; a cluster needs a TMPDIR that its executors share",
    )
    parser.add_argument("--orders", type=int, default=20_000, help="number of orders; at least 800")
    parser.add_argument(
        "--wait", action="store_true", help="keep the servers running at the end, until you press Enter"
    )
    parser.add_argument(
        "--ui", action="store_true", help="show the web page, and keep it running at the end as with --wait"
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
        contextlib.ExitStack() as ending,
    ):
        page = WebPage(hosts, Path(folder) / "dead-letters") if asked.ui else None
        if page is not None:
            ending.callback(page.end)
        good = show(asked, console, Path(folder), hosts, endpoint, page)
    verdict = "[green]everything is as expected[/]" if good else "[red]the result is NOT as expected[/]"
    console.print(f"\n{verdict}, after {time.monotonic() - began:.0f} s")
    if not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
