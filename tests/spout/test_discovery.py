"""Spark's own look for formats, run as it runs it: in a process of its own, here without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fast_spark
import pytest

from kinesis_trident.checkpoint.embedded.java import ensure_java

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / ".ci" / "release" / "programs"

OTHER = """
from pyspark.sql.datasource import DataSource

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"
"""

LOOK = """
import json, sys
import pyspark
import pyspark.sql.datasource

change = sys.argv[1]
hidden = {"older": "pyspark.sql.streaming.datasource", "broken": "kinesis_trident.spout.source"}.get(change)
if change == "older" and hidden in sys.modules:
    # What PySpark 4.0 and 4.1 have: Python data sources without read limits.
    del sys.modules[hidden], pyspark.sql.streaming.datasource

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())

from look_up import look_up
from pyspark.serializers import read_int
from pyspark.worker_util import pickleSer

found = look_up()
answers = {}
for _ in range(read_int(found)):
    name = found.read(read_int(found)).decode()
    source = pickleSer._read_with_length(found)
    calls = {
        "schema": lambda s: s.schema(),
        "stream": lambda s: s.streamReader(None),
        "batch": lambda s: s.reader(schema=None),
        "sink": lambda s: s.writer(None, False),
    }
    for what, call in calls.items() if name == "kinesis-trident" else ():
        try:
            call(source({}))
        except Exception as error:
            answers[what] = f"{type(error).__name__}: {error}"
    answers[name] = source.__name__
print(json.dumps(answers))
"""

LOAD = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from kinesis_trident import KinesisTridentSource

def load(session):
    try:
        session.readStream.format("kinesis-trident").load()
    except Exception as error:
        print(next(word for word in ("DATA_SOURCE_NOT_FOUND", "OptionsError") if word in str(error)))

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
load(spark)
Path(sys.argv[1]).unlink()
load(spark)
load(spark.newSession())
spark.dataSource.register(KinesisTridentSource)
load(spark)
"""


def look(folder: Path, change: str) -> dict[str, str]:
    (folder / "pyspark_other.py").write_text(OTHER)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, change],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [folder, ROOT, PROGRAMS]))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def test_a_pyspark_without_read_limits_finds_the_source(tmp_path: Path) -> None:
    found = look(tmp_path, "older")
    assert (found["other"], found["kinesis-trident"]) == ("DefaultSource", "KinesisTridentSource")
    assert "OptionsError" in found["schema"]


def test_a_pyspark_without_python_sources_says_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.6'\n")
    (tmp_path / "pyspark" / "sql" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "from kinesis_trident import KinesisTridentSource"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (
        "MissingPackageError: kinesis_trident.KinesisTridentSource needs PySpark 4.0 or newer" in done.stderr
    )
    assert "this is PySpark 3.5.6, which lacks pyspark.sql.datasource" in done.stderr


def test_a_source_that_cannot_be_imported_hides_no_other(tmp_path: Path) -> None:
    found = look(tmp_path, "broken")
    assert found["other"] == "DefaultSource"
    assert "No module named 'kinesis_trident.spout.source'" in found["schema"]


def test_this_pyspark_finds_the_source(tmp_path: Path) -> None:
    found = look(tmp_path, "nothing")
    assert (found["other"], found["kinesis-trident"]) == ("DefaultSource", "KinesisTridentSource")
    assert "OptionsError" in found["schema"]


@pytest.mark.long
def test_a_session_whose_look_failed_takes_a_registered_source(tmp_path: Path) -> None:
    broken, python = tmp_path / "broken", tmp_path / "python"
    broken.touch()
    python.write_text(f'#!/bin/sh\n[ -e "{broken}" ] && exit 3\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    paths = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python), "JAVA_HOME": str(ensure_java())}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(broken)],
        env=os.environ | fast_spark.environment() | paths,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Skipping the lookup of Python Data Sources due to the failure" in done.stderr
    assert done.stdout.split() == ["DATA_SOURCE_NOT_FOUND"] * 2 + ["OptionsError"] * 2
