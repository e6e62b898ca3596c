"""The other readers of Kinesis, their environments, and one measurement of one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.endpoint import ROOT, Records
from benchmarks.processors import Rate

__all__ = ["PEERS", "Peer", "PeerError", "install", "measure"]

ENVIRONMENTS = ROOT / "build" / "peers"
LONGEST = 300.0
"""Seconds that a peer has for its records."""

_BOTO3 = "boto3==1.44.5"
_MEASURING = "psutil>=6"


class PeerError(Exception):
    """A peer cannot be installed, or did not read every record once; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A reader of Kinesis that is not ours: a module beside this one, and what pip installs for it.

    `about`: what one has to know about its figures.
    """

    name: str
    module: str
    requirements: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    about: str = ""


PEERS = (
    Peer("boto3, get_records in a loop", "boto3_loop", (_BOTO3,)),
    Peer("boto3, a process with a loop for each shard", "boto3_loop", (_BOTO3,), ("--processes",)),
    Peer(
        "async-kinesis",
        "async_kinesis",
        ("async-kinesis==3.0.1", "aiobotocore==3.10.0"),
        about="asks a shard 5 times a second at most, by its own throttle",
    ),
    Peer(
        "quixstreams, KinesisSource without Kafka",
        "quixstreams_source",
        ("quixstreams[kinesis]==3.28.1", _BOTO3),
        about="a counter stands where its producer writes to Kafka; an application adds that, and reads it back",
    ),
    Peer(
        "bytewax with a small source, one worker",
        "bytewax_source",
        ("bytewax==0.21.1", _BOTO3),
        about="it has no source for Kinesis; this one calls boto3",
    ),
    Peer(
        "kinesis-python",
        "kinesis_python",
        ("kinesis-python==0.2.1", _BOTO3),
        about="a process for each shard, and one more that takes their records from a queue",
    ),
)
"""The versions are pinned here and nowhere else."""


def install(peer: Peer) -> Path:
    """Return the Python of a peer's environment, which is made if its requirements have changed.

    Raises:
        PeerError: it cannot be made.
    """
    folder = ENVIRONMENTS / peer.module
    python = folder / ".venv" / "bin" / "python"
    wanted = [*peer.requirements, _MEASURING]
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text().splitlines() != wanted:
        print(f"installing {', '.join(peer.requirements)} into {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder / ".venv")])
        _run([str(python), "-m", "pip", "install", "--quiet", "--prefer-binary", *wanted])
        stamp.write_text("".join(f"{one}\n" for one in wanted))
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(_last_line(done.stderr or done.stdout))


def measure(peer: Peer, python: Path, url: str, held: Records) -> Rate:
    """Have a peer read an endpoint's records from the beginning to the tip.

    Raises:
        PeerError: it failed, or it did not hand on each record once.
    """
    expected = held.shards * held.total
    given = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    process = subprocess.Popen(
        [str(python), "-m", f"benchmarks.peers.{peer.module}", str(expected), *peer.arguments],
        cwd=ROOT,
        env=given
        | {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_KINESIS": url,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        msg = f"no result in {LONGEST:.0f} s"
        raise PeerError(msg) from None
    finally:
        # With the processes that it may have left behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode or not output.strip():
        raise PeerError(_last_line(errors))
    counted = json.loads(output.splitlines()[-1])
    print(f"{peer.name}, {held.size} B: {json.dumps(counted)}", flush=True)
    if (counted["records"], counted["bytes"]) != (expected, expected * held.size):
        msg = (
            f"{counted['records']:,} records with {counted['bytes']:,} bytes, where there are "
            f"{expected:,} with {expected * held.size:,}"
        )
        raise PeerError(msg)
    return Rate(expected / counted["seconds"], expected / counted["processor"])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it ended without a word"
