"""Makes Spark and ZooKeeper start in half the processor time: `python tests/fast_spark.py` prepares it.

Once for an environment. Tests start dozens of JVMs and hundreds of Python processes that live for seconds:

- The JVM reads Spark's classes from an archive (class data sharing) instead of loading and verifying 20,000 of them;
  that of a ZooKeeper too, of its own classes.
- Spark puts its `pyspark.zip` before the installed PySpark, and Python compiles what it imports from there in every
  process. A SPARK_HOME without that file leaves the installed PySpark, which is compiled.
- The Python processes of the shared Spark are forks of one that has the common modules imported
  (`workers/warm_python.py`).
- All sessions of botocore in a process read the descriptions of AWS's services once.

Nothing of this is needed: without the prepared folder Spark and ZooKeeper start as they do for users.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import botocore.session
import pyspark
import pytest
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

__all__ = ["SHORT_LIVED", "WORKERS", "environment", "prepare", "speed_up", "warm_python"]

FOLDER = Path(sys.prefix) / "fast-spark" / pyspark.__version__
HOME = FOLDER / "home"
ARCHIVE = FOLDER / "classes.jsa"
ARCHIVE_OF_ZOOKEEPER = FOLDER / "zookeeper.jsa"
WORKERS = Path(__file__).parent / "workers"

# Most JVMs of tests live for seconds: compiling what runs once for speed costs more than it gives.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def environment() -> dict[str, str]:
    """Return what the environment of Spark's processes needs besides."""
    if not ARCHIVE.exists():
        return {"SPARK_SUBMIT_OPTS": SHORT_LIVED}
    # Another Java than the one that wrote the archive does without it, and says nothing.
    return {
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} {_SILENT}",
        "SPARK_HOME": str(HOME),
    }


def speed_up(patch: pytest.MonkeyPatch) -> None:
    """Let this process start its ZooKeepers and its clients of AWS faster."""
    if ARCHIVE_OF_ZOOKEEPER.exists():
        patch.setattr(EmbeddedZooKeeper, "_command", _with(f"SharedArchiveFile={ARCHIVE_OF_ZOOKEEPER}"))
    patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))


def _with(option: str) -> Callable[[EmbeddedZooKeeper], list[str]]:
    """Return a ZooKeeper's `_command` whose Java is given an option."""
    plain = EmbeddedZooKeeper._command

    def command(server: EmbeddedZooKeeper) -> list[str]:
        java, *rest = plain(server)
        return [java, f"-XX:{option}", *_SILENT.split(), *rest]

    return command


@contextmanager
def warm_python() -> Iterator[dict[str, str]]:
    """Yield what the environment of Spark's JVMs needs to fork their Python processes; each JVM starts a server."""
    # Short: the path of a socket has at most 108 characters.
    with tempfile.TemporaryDirectory(prefix="warm") as folder:
        yield {"WARM_PYTHON": f"{folder}/python"}


def prepare(java_home: Path) -> None:
    """Make Spark's home, and the archives of the classes that a few queries load, and a ZooKeeper; those not there."""
    if not ARCHIVE.exists():
        _prepare_spark(java_home)
    if not ARCHIVE_OF_ZOOKEEPER.exists():
        _prepare_zookeeper()


def _prepare_zookeeper() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedZooKeeper, "_command", _with(f"ArchiveClassesAtExit={ARCHIVE_OF_ZOOKEEPER}"))
        with EmbeddedZooKeeper() as server:
            client = KazooClient(server.hosts)
            client.start()
            client.create("/one/two", b"three", ephemeral=True, makepath=True)
            client.transaction().commit()
            client.get_children("/one", watch=lambda _: None)
            client.delete("/one", recursive=True)
            client.stop()
            client.close()
    if not ARCHIVE_OF_ZOOKEEPER.exists():
        print("ZooKeeper's classes could not be archived; the tests take longer")


def _prepare_spark(java_home: Path) -> None:
    print(
        "storing the classes of Spark, so that each JVM starts faster; this takes half a minute", flush=True
    )
    shutil.rmtree(FOLDER, ignore_errors=True)
    HOME.mkdir(parents=True)
    for name in ("bin", "sbin", "jars"):
        (HOME / name).symlink_to(Path(pyspark.__file__).parent / name)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(WORKERS / "few_queries.py"), folder],
            env=os.environ
            | {
                "JAVA_HOME": str(java_home),
                "SPARK_HOME": str(HOME),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={ARCHIVE} {_SILENT}",
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
    if done.returncode or not ARCHIVE.exists():
        print(f"Spark's classes could not be archived; the tests take longer: {done.stderr[-2000:]}")


if __name__ == "__main__":
    from kinesis_trident.checkpoint.embedded.java import ensure_java

    prepare(ensure_java())
