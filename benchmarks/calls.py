"""Measure what a call of Kinesis costs the process that makes it: boto3 and our client, in turns.

python -m benchmarks.calls
python -m benchmarks.calls --dry-run --check    # make bench-quick: fails where a bound is missed
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from time import process_time
from typing import Any

import boto3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.endpoint import PreparedEndpoint, Records, pretend_credentials
from benchmarks.report import Section, publish, verdict
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.options.source import SourceOptions

BOUNDS = {0: 0.25, 20: 0.25, 200: 0.12, 10_000: 0.06}
"""The bounds: the processor's time of a GetRecords call of ours as a part of boto3's, by the records of its page."""

TLS = 1.4
"""Times that bound over HTTPS: encryption costs both the same, and ours is the smaller part."""

PUTS = {10: 0.2, 100: 0.2, 500: 0.2}
"""The same of PutRecords, by the records of a request."""

SIZES = (200, 1024)
ROUNDS = 7
CALLS = 40_000
"""A round has so many records, and 40 calls at most."""


@contextmanager
def certified() -> Iterator[tuple[str, str]]:
    """Yield the paths of a certificate for loopback, which boto3 and our client trust meanwhile, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        os.environ["AWS_CA_BUNDLE"] = str(paths[0])
        try:
            yield str(paths[0]), str(paths[1])
        finally:
            del os.environ["AWS_CA_BUNDLE"]


def compared(theirs: Callable[[], object], ours: Callable[[], object], records: int) -> tuple[float, float]:
    """Return the processor's seconds of a call of boto3, and of ours: the shortest of several rounds in turns."""
    times = max(1, min(40, CALLS // max(1, records) // 2))
    found = [float("inf")] * 2
    for _ in range(ROUNDS):
        for at, call in enumerate((theirs, ours)):
            call()
            start = process_time()
            for _ in range(times):
                call()
            found[at] = min(found[at], (process_time() - start) / times)
    return found[0], found[1]


def reads(url: str) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield the records of a page, and what a call for it costs boto3 and us."""
    plain, client = clients(url)
    for count in BOUNDS:
        # The first records of the shard, or its tip.
        iterator, limit = ("0:0", count) if count else (f"0:{max(BOUNDS)}", max(BOUNDS))
        assert client.get_records(iterator, limit).records.num_rows == count
        yield (
            count,
            compared(
                lambda iterator=iterator, limit=limit: plain.get_records(ShardIterator=iterator, Limit=limit),  # type: ignore[misc]
                lambda iterator=iterator, limit=limit: client.get_records(iterator, limit),  # type: ignore[misc]
                count,
            ),
        )


def writes(url: str, size: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield the records of a request, and what it costs boto3 and us."""
    plain, client = clients(url)
    for count in PUTS:
        records: list[Any] = [
            {"Data": os.urandom(size), "PartitionKey": f"key-{number:04}"} for number in range(count)
        ]
        entries = Entries.of(records)
        yield (
            count,
            compared(
                lambda records=records: plain.put_records(StreamName="s", Records=records),  # type: ignore[misc]
                lambda entries=entries: client.put_entries("s", entries),  # type: ignore[misc]
                count,
            ),
        )


def clients(url: str) -> tuple[Any, BotoKinesis]:
    return boto3.client("kinesis", endpoint_url=url), BotoKinesis(
        SourceOptions(stream_name="s", endpoint_url=url)
    )


def main() -> None:
    pretend_credentials()
    rows, missed = [], []

    def add(what: str, costs: tuple[float, float], bound: float) -> None:
        theirs, ours = costs
        is_kept = ours / theirs <= bound
        missed.extend([] if is_kept else [what])
        rows.append(
            [
                what,
                f"{theirs * 1e6:,.0f} µs",
                f"{ours * 1e6:,.0f} µs",
                f"{ours / theirs:.3f} x",
                verdict(f"{bound:.3g} x", is_kept),
            ]
        )

    held = Records(pages=1, page=max(BOUNDS), size=SIZES[0])
    with certified() as certificate:
        for name, given, factor in (("HTTP", None, 1.0), ("HTTPS", certificate, TLS)):
            with PreparedEndpoint(held, given) as endpoint:
                for count, costs in reads(endpoint.url):
                    bound = BOUNDS[count] * factor
                    add(f"GetRecords over {name}, {count:,} records of {SIZES[0]} B", costs, bound)
        with PreparedEndpoint(Records(shards=4, pages=1, page=1)) as endpoint:
            for size in SIZES:
                for count, costs in writes(endpoint.url, size):
                    add(f"PutRecords over HTTP, {count} records of {size:,} B", costs, PUTS[count])
    publish(
        Section(
            name="calls",
            title="What a call costs",
            command="python -m benchmarks.calls",
            columns=["processor's time of the process that calls", "boto3", "ours", "ours to boto3", "bound"],
            rows=rows,
            note="Kinesis gives a shard 5 calls and 2 MiB a second, and most pages are empty or small: the call is the "
            f"price, not the record. The shortest of {ROUNDS} rounds in turns; the endpoint is another process. "
            "boto3's answer is a dictionary for each record, ours is in Arrow's columns.",
        )
    )
    if missed and "--check" in sys.argv:
        sys.exit(f"bench-quick: missed {'; '.join(missed)}")


if __name__ == "__main__":
    main()
