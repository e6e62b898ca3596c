"""The trials of `doctor` without a session: of this machine, and of servers of ZooKeeper that let nobody in."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from typing import NamedTuple

from kazoo.hosts import collect_hosts

from kinesis_trident.checkpoint.embedded.java import find_java
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.common.errors import KinesisTridentError

_PACKAGES = ("kinesis-trident", "pyspark", "pyarrow", "pandas", "kazoo", "boto3", "msgspec", "numpy")


_ASK = b"srvr"
"""A server answers this word without a login, and without a quorum."""

_MOST = 4096


class Result(NamedTuple):
    """The result of one trial: `state` is ok, warning, failed or skipped."""

    name: str
    state: str
    says: str
    remedy: str = ""


def examine_machine() -> list[Result]:
    """Try what is installed here."""
    return [*_versions(), _java(), _workers()]


def _versions() -> Iterator[Result]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    yield Result("versions", "ok", f"Python {platform.python_version()}, {', '.join(found)}")
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        yield Result(
            "spark", "warning", "pyspark is not installed here", "pip install 'kinesis-trident[spark]'"
        )
        return
    numbers = tuple(int(part) for part in spark.split(".")[:2] if part.isdigit())
    good = numbers >= (4, 0)
    yield Result(
        "spark",
        "ok" if good else "failed",
        f"pyspark {spark}",
        "" if good else "install pyspark 4.0 or newer",
    )


def _java() -> Result:
    try:
        java = find_java()
    except KinesisTridentError as error:
        return Result("java", "failed", str(error), "pip install 'kinesis-trident[java]'")
    return Result("java", "ok", str(java))


def _workers() -> Result:
    """Run the Python that Spark starts for its workers here, if it is set, and compare."""
    name = os.environ.get("PYSPARK_PYTHON") or "python3"
    path = shutil.which(name)
    if path is None:
        return Result("python of workers", "failed", f"{name} is not found", "set PYSPARK_PYTHON to a Python")
    program = "import sys, kinesis_trident, pyarrow; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Result("python of workers", "failed", f"{path}: {error}", "set PYSPARK_PYTHON to a Python")
    here = "{}.{}".format(*sys.version_info)
    said = done.stdout.strip()
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        return Result(
            "python of workers",
            "failed",
            f"{path}: {why}",
            f"install kinesis-trident there, or set PYSPARK_PYTHON={sys.executable}",
        )
    if said != here:
        return Result(
            "python of workers",
            "failed",
            f"{path} is Python {said}, the driver's is {here}",
            f"set PYSPARK_PYTHON={sys.executable} on all machines",
        )
    return Result("python of workers", "ok", f"{path}, Python {said}, with kinesis-trident")


def try_servers(config: ZooKeeperConfig, seconds: float = 2.0) -> Iterator[Result]:
    """Ask each server of `config` what it is; yield a result for each, and one for all of them."""
    roles: list[str] = []
    # The chroot is of the connection, and kazoo mixes the hosts.
    for host, port in sorted(collect_hosts(config.hosts)[0]):
        name = f"server {host}:{port}"
        try:
            answer = _ask(host, port, seconds, is_plain=config.tls is None)
        except OSError as error:
            yield Result(
                name,
                "failed",
                f"does not answer: {error.strerror or error}",
                "start it, or mend the way to it",
            )
            continue
        role = next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")
        roles.append(role)
        if role:
            yield Result(name, "ok", f"runs, as {role}")
        elif config.tls is not None or not answer:
            yield Result(name, "skipped", "its port is open, and it does not say what it is")
        else:
            yield Result(name, "failed", "runs, and has no quorum", "start the other servers")
    if not any(roles):
        yield Result(
            "quorum",
            "failed",
            f"no server serves: {len(roles)} of those in --zookeeper can be reached",
            "more than half of the servers must run and reach each other; a query waits for that as long as its "
            "zookeeper.sessionTimeout, and goes on with its next start",
        )


def _ask(host: str, port: int, seconds: float, *, is_plain: bool) -> str:
    """Connect, and ask in plain text; an answer that does not come is empty.

    Raises:
        OSError: nothing listens there.
    """
    with closing(socket.create_connection((host, port), timeout=seconds)) as connection:
        if not is_plain:
            return ""
        connection.sendall(_ASK)
        try:
            return connection.recv(_MOST).decode(errors="replace")
        except TimeoutError:
            return ""
