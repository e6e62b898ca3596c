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
    code = (
        "import sys; before = {*sys.modules}; import kinesis_trident; "
        "print(*{name.partition('.')[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kinesis_trident"]


def test_discovery_loads_spark_alone() -> None:
    """Spark imports this in each process that looks for a format."""
    alone = loaded("import pyspark.sql.datasource", ANY_LIBRARY)
    assert "pyspark" in alone
    assert loaded("import pyspark_kinesis_trident", ANY_LIBRARY) == alone


MODULES = (
    "spout.source",
    "spout.planner.run",
    "spout.reader.task",
    "spout.batch.batch_read",
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


@pytest.mark.parametrize("module", ["spout.planner.run", "spout.reader.task", "bolt.reliable"])
def test_what_large_pages_and_requests_need_waits_for_one(module: str) -> None:
    """Spark starts these processes for each query, and most of them never see one."""
    assert loaded(f"import kinesis_trident.{module}", ["pybase64"]) == []


# A page of records, as plain rows, in a batch, and read again: what a worker of Spark does with them.
READING = """
import base64, json
from kinesis_trident.spout.failed_records.retry_ranges import Picker, check_whole
from kinesis_trident.spout.kinesis.aggregation import deaggregate_page
from kinesis_trident.spout.kinesis.pages.decoding import page_of
from kinesis_trident.spout.kinesis.record_batches import select_from
from kinesis_trident.spout.positions import AtTimestamp
from kinesis_trident.spout.reader.rows import Retried, Segment, TurnRows, make_untracked_rows
from kinesis_trident.tracker.records import Run
records = [
    {"Data": base64.b64encode(b"x" * n).decode(), "PartitionKey": "\u00e9", "SequenceNumber": str(10**55 + n),
     "ApproximateArrivalTimestamp": 1.7e9 + n}
    for n in range(9)
]
page = page_of(json.dumps({"Records": records, "NextShardIterator": "i", "MillisBehindLatest": 0}).encode())
batch = select_from(deaggregate_page(page.records), AtTimestamp(1_700_000_002_000))
assert batch.num_rows == 7
check_whole(batch, [str(10**55)], "here")
runs = [Run(str(10**55 + n), str(10**55 + n)) for n in (2, 4, 5)]
picker = Picker(runs)
picker.offer(batch)
rows = TurnRows("s", "shard", 0, 1, 1, [Retried.of(runs, picker.records), Segment([batch], 1)])
assert sum(one.num_rows for one in rows.record_batches()) == 10
rows.xor(), rows.digest(), rows.keys()
make_untracked_rows(page.records, "s", "shard")
"""


# Functions of these rows, tracked: what a worker of Spark does for `reliable()`.
TRACKED = """
import pyarrow as pa
from kinesis_trident.bolt.steps.functions import ArrowStep, RowStep
from kinesis_trident.bolt.tracking.carriers import Unheard
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.bolt.tracking.verdict import Verdict
from kinesis_trident.checkpoint.model.nodes import NotDone
schema = pa.schema(
    [("word", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("b", pa.binary()), ("ok", pa.bool_())]
)
def parsed(record):
    if record.sequenceNumber.endswith("3"):
        raise ValueError("no number")
    if record.sequenceNumber.endswith("4"):
        return None, None, None, None, None
    return record.partitionKey, record.txid, 0.5, record.data, True
def numbered(batch):
    numbers = b"".join(row.to_bytes(4, "little") for row in range(batch.num_rows))
    column = pa.Array.from_buffers(pa.int32(), batch.num_rows, [None, pa.py_buffer(numbers)])
    return batch.append_column("__row", column)
steps = RowStep(parsed, schema), ArrowStep(numbered, schema)
last = str(10**55 + 8)
verdict = Verdict({"shard": (NotDone(last, last, 1, "before"),)})
operator = StepOperator(Tag("one", 1, Unheard()), steps, carry=("messageId",), anchored=True, verdict=verdict)
out = [row for batch in operator(rows.record_batches()) for row in batch.to_pylist()]
assert [row["n"] for row in out] == [1, None, 1, 1, None, 1, 1, 1], out
"""


def test_no_pandas_comes_with_what_is_read() -> None:
    """pyarrow imports it beside its most common functions: a third of a second, and 40 MB in each worker."""
    assert loaded(READING, ["pandas", "pyarrow"]) == ["pyarrow"]
    assert loaded(READING + TRACKED, ["pandas"]) == []
    assert loaded("import pyarrow; pyarrow.array([1])", ["pandas"]) == ["pandas"]


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


@pytest.mark.parametrize("name", ["merge_into", "begin_fenced"])
def test_a_name_that_needs_the_package_of_an_extra_says_which(name: str) -> None:
    code = f"import sys; sys.modules['sqlalchemy'] = None; import kinesis_trident; kinesis_trident.{name}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"kinesis_trident.common.errors.MissingPackageError: kinesis_trident.{name} needs the package sqlalchemy. "
        "Run pip install 'kinesis-trident[sql]', on the executors too"
    )
