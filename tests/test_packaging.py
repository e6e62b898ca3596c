"""What `pip install` gives: Spark finds the format by itself, from the wheel and from an editable install.

Each environment here is a clean one: it sees the dependencies of the running one and nothing of this project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bolt", "checkpoint", "console", "spout", "tracker", "trident")

# No spark.dataSource.register: what Spark finds, it found by discovery.
LOAD = """
from pyspark.sql import SparkSession
from kinesis_trident.checkpoint.embedded.java import ensure_java

ensure_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
stream = spark.readStream.format("kinesis-trident")
for options in ({}, {"streamName": "s", "applicationName": "a", "zookeeper.hosts": "127.0.0.1:2181"}):
    try:
        print("columns", *stream.options(**options).load().schema.names)
    except Exception as error:
        print("error", str(error).replace(chr(10), " "))
spark.stop()
"""

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, so that building writes nothing into the checkout."""
    copy = tmp_path_factory.mktemp("source") / "project"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "tests", "artifacts")
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # As in an activated environment: Spark starts its workers, discovery among them, as python3 of the PATH.
    environment["PATH"] = os.pathsep.join([str(Path(str(command[0])).parent), environment["PATH"]])
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def clean_environment(folder: Path) -> Path:
    """A virtual environment with the running one's dependencies; returns its python.

    A `.pth` file adds their folders, but `.pth` files in those, by which this project may be installed, are
    not followed.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    dependencies = [place for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    python = folder / "bin" / "python"
    names = [*PACKAGES, "pyspark_kinesis_trident"]
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    assert run(python, "-c", code, cwd=folder).stdout.strip() == "[]", "the environment is not clean"
    return python


def install(python: Path, *what: object) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install"]
    run(*pip, "--quiet", "--no-index", "--no-deps", "--no-build-isolation", *what, cwd=python.parent)


def load(python: Path, folder: Path) -> list[str]:
    return run(python, "-c", LOAD, cwd=folder).stdout.strip().splitlines()


def assert_found(lines: list[str]) -> None:
    error, columns = lines
    assert error.startswith("error ")
    assert "streamName" in error
    assert "DATA_SOURCE_NOT_FOUND" not in error
    assert columns.split()[:3] == ["columns", "partitionKey", "data"]


def test_the_wheel_holds_all_packages_typed_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {*PACKAGES, "pyspark_kinesis_trident.py"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_spark_finds_the_format_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    python = clean_environment(tmp_path / "venv")
    install(python, wheel)
    assert_found(load(python, tmp_path))
    usage = run(python.parent / "kinesis-trident", "--help", cwd=tmp_path).stdout
    assert "checkpoints" in usage


def test_spark_finds_the_format_from_an_editable_install(source: Path, tmp_path: Path) -> None:
    python = clean_environment(tmp_path / "venv")
    install(python, "--editable", source)
    assert_found(load(python, tmp_path))
    where = run(python, "-c", "import spout; print(spout.__file__)", cwd=tmp_path).stdout
    assert Path(where.strip()).is_relative_to(source)


def test_without_the_discovery_module_spark_finds_nothing(wheel: Path, tmp_path: Path) -> None:
    """The tests above can fail."""
    python = clean_environment(tmp_path / "venv")
    install(python, wheel)
    (module,) = (tmp_path / "venv" / "lib").glob("python*/site-packages/pyspark_kinesis_trident.py")
    module.unlink()
    lines = load(python, tmp_path)
    assert len(lines) == 2
    assert all("DATA_SOURCE_NOT_FOUND" in line for line in lines)
