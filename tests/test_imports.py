"""Test what an import brings along: Spark imports these modules in each of its processes, and each costs time there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ANY_LIBRARY = ["boto3", "botocore", "kazoo", "numpy", "pandas", "pyarrow", "pyspark", "typer"]

# The function of a Spark job names its argument's type, so that `reliable` takes it for one of DataFrames.
PANDAS_FUNCTION = """
import pandas as pd
from kinesis_trident.bolt.steps.kinds import step_for
from pyspark.sql.types import LongType, StructType
schema = StructType().add("n", LongType())
def doubled(frame: pd.DataFrame) -> pd.DataFrame: ...
assert type(step_for(doubled, schema)).__name__ == "PandasStep"
"""

RECORD_FUNCTION = """
from kinesis_trident.bolt.steps.kinds import step_for
from pyspark.sql.types import LongType, StructType
schema = StructType().add("n", LongType())
def doubled(record): ...
assert type(step_for(doubled, schema)).__name__ == "RowStep"
"""


def loaded(code: str, libraries: list[str]) -> list[str]:
    """Say which libraries a fresh process has loaded after some code."""
    asked = f"{code}\nimport sys\nprint(*(one for one in {libraries} if one in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_face_alone_loads_no_library() -> None:
    assert loaded("import kinesis_trident", ANY_LIBRARY) == []


def test_discovery_loads_spark_alone() -> None:
    """Spark imports this in each process that looks for a format."""
    assert loaded("import pyspark_kinesis_trident", ANY_LIBRARY) == ["pyspark"]


MODULES = (
    "spout.source",
    "spout.planner.run",
    "spout.reader.task",
    "spout.batch_read",
    "spout.sink.writer",
    "bolt.reliable",
    "bolt.storm.topology",
    "trident",
    "trident.run.state_updates",
    "console.cli",
)


def test_no_pandas_comes_along() -> None:
    code = f"""
import importlib, sys
for module in {MODULES}:
    importlib.import_module("kinesis_trident." + module)
    assert "pandas" not in sys.modules, module
"""
    assert loaded(code, ["pandas"]) == []


def test_pandas_comes_with_functions_of_data_frames_alone() -> None:
    assert loaded(RECORD_FUNCTION, ["pandas"]) == []
    assert loaded(PANDAS_FUNCTION, ["pandas"]) == ["pandas"]


@pytest.mark.parametrize(
    "statement",
    ["from kinesis_trident import reliable", "from kinesis_trident.trident import TridentTopology"],
)
def test_without_spark_an_error_names_both_ways_to_get_it(statement: str) -> None:
    code = f"""
import sys
sys.modules["pyspark"] = None  # as if it were not installed
import kinesis_trident.console.cli
from kinesis_trident import KinesisTridentError
try:
    {statement}
except ImportError as error:
    assert isinstance(error, KinesisTridentError)
    assert "kinesis-trident[spark]" in str(error), error
    assert "spark-submit" in str(error), error
else:
    raise AssertionError("imported without PySpark")
"""
    assert loaded(code, ["pandas"]) == []


def test_without_localstack_client_its_endpoint_names_the_extra() -> None:
    code = """
import sys
sys.modules["localstack_client"] = None
from kinesis_trident import KinesisTridentError
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.connection import ConnectionOptions
try:
    BotoKinesis(ConnectionOptions(stream_name="s", endpoint_url="localstack"))
except KinesisTridentError as error:
    assert "kinesis-trident[localstack]" in str(error), error
else:
    raise AssertionError("an endpoint without the package that knows it")
"""
    assert loaded(code, []) == []
