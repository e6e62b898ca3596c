"""The README is short, and its code runs as it stands: only names of streams, servers and folders are replaced."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from tenacity import Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from kinesis_trident import stop
from kinesis_trident.checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FUNCTIONS = (ROOT / "docs" / "functions.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST, MAIN = PROGRAM.findall(README)
HEAD = MAIN[: MAIN.index("query = ")]
PLAIN, BATCH, PANDAS = PROGRAM.findall(FUNCTIONS)

GOOD = {f"order-{number}": 10.0 * number for number in range(1, 6)}
RECORDS = [
    *(json.dumps({"order_id": name, "amount": amount}) for name, amount in GOOD.items()),
    '{"order_id": "no-am',
    json.dumps({"order_id": "free"}),
    json.dumps({"order_id": "negative", "amount": -1.0}),
]


def replaced(code: str, **names: str) -> str:
    """The code with other names; each of them must be in it."""
    known = {
        "stream": '"streamName", "orders"',
        "region": '"region", "eu-west-1"',
        "app": '"applicationName", "orders-job"',
        "zookeeper": "zk1:2181,zk2:2181,zk3:2181",
        "dead": "s3://my-bucket",
        "folder": "s3a://my-bucket",
    }
    for key, name in names.items():
        assert known[key] in code
        code = code.replace(known[key], name)
    return code


def eventually(look: Callable[[], Any], wanted: object) -> None:
    """Wait until `look` says what is wanted; the assertion shows what it said last."""
    retrying = Retrying(
        stop=stop_after_delay(300),
        wait=wait_fixed(0.2),
        # Spark may be writing a file right now, or removing a folder of its own.
        retry=retry_if_result(lambda found: found != wanted)
        | retry_if_exception_type((FileNotFoundError, json.JSONDecodeError, pa.ArrowInvalid)),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    assert retrying(look) == wanted


CODES = {
    "main": MAIN[: MAIN.rindex("await_termination(query)")],
    "plain": HEAD + PLAIN,
    "batch": HEAD + BATCH,
    "pandas": HEAD + PANDAS,
}


@pytest.fixture(scope="module")
def folders(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    kinesis_server: EmbeddedKinesis,
    kinesis: KinesisClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Path]]:
    """The folder of each query, by the name of its code: all run side by side, as their retries take seconds.

    Each is on a stream of its own that holds `RECORDS`.
    """
    folders: dict[str, Path] = {}
    with ExitStack() as ending:
        for name, code in CODES.items():
            stream = f"readme-{uuid.uuid4().hex[:12]}"
            kinesis.create_stream(StreamName=stream, ShardCount=1)
            ending.callback(kinesis.delete_stream, StreamName=stream, EnforceConsumerDeletion=True)
            kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
            kinesis.put_records(
                StreamName=stream,
                Records=[{"Data": data.encode(), "PartitionKey": uuid.uuid4().hex} for data in RECORDS],
            )
            folders[name] = tmp_path_factory.mktemp(name)
            ours = replaced(
                code,
                stream=f'"streamName", "{stream}"',
                region=f'"endpointUrl", "{kinesis_server.endpoint_url}"',
                app=f'"applicationName", "{stream}"',
                zookeeper=zookeeper.hosts,
                dead=str(folders[name]),
                folder=str(folders[name]),
            )
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(ours, "README.md", "exec"), names)
            ending.callback(stop, names["query"], timeout=300)
        yield folders


def letters(folder: Path) -> set[tuple[bytes, str]]:
    """Return what the dead letters hold: payload, and the last reason up to its message."""
    documents = [
        json.loads(line)
        for file in (folder / "dead-letters").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return {
        (base64.b64decode(one["data"]), re.match("(PERMANENT: )?[^:]*", one["reasons"][-1]["reason"])[0])
        for one in documents
    }


def parquet(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of the Parquet files below a folder, sorted."""
    files = [str(file) for file in folder.rglob("*.parquet") if "_temporary" not in file.parts]
    if not files:
        return []
    table = ds.dataset(files, format="parquet").to_table(columns=list(columns))
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def delta(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, sorted."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    rows = DeltaTable(table).to_pyarrow_table()
    return sorted(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))


def test_the_front_page_is_read_in_a_few_minutes() -> None:
    """Words as `wc -w` counts them: whatever stands between spaces, in code and tables too."""
    assert len(README.split()) <= 1_100
    assert len(README.split("\n\n")[1].split()) <= 70


def test_eight_lines_run_in_an_empty_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len([line for line in FIRST.splitlines() if line.strip()]) == 8
    assert README.index(FIRST) < README.index("\n## ")
    monkeypatch.chdir(tmp_path)
    exec(compile(FIRST, "README.md", "exec"), {"__name__": "__main__"})
    rows = re.findall(r"^\|(orders/shardId-0{12}:\d+)\|(.*?) *\|$", capsys.readouterr().out, re.MULTILINE)
    assert [text for _, text in rows] == ["two pens", "a pad"]
    assert list(tmp_path.iterdir()) == []


def test_the_main_job_has_about_twenty_lines() -> None:
    assert len([line for line in MAIN.splitlines() if line.strip()]) <= 26


def test_the_main_job_writes_what_is_good_and_dead_letters_the_rest(folders: dict[str, Path]) -> None:
    assert MAIN.rstrip().splitlines()[-1].startswith("await_termination(query)")
    folder = folders["main"]
    good = sorted([*GOOD.items(), ("negative", -1.0)])
    eventually(lambda: delta(folder / "orders", "order_id", "amount"), good)
    bad = {(RECORDS[5].encode(), "PERMANENT: JSONDecodeError"), (RECORDS[6].encode(), "PERMANENT: KeyError")}
    eventually(lambda: letters(folder), bad)


def test_a_plain_query_writes_all_rows(folders: dict[str, Path]) -> None:
    eventually(lambda: parquet(folders["plain"] / "raw", "json"), sorted((record,) for record in RECORDS))


def test_a_batch_function_sends_single_rows_back(folders: dict[str, Path]) -> None:
    def written(folder: Path) -> list[str]:
        files = [file for file in (folder / "orders-json").rglob("*.json") if "_temporary" not in file.parts]
        return sorted(json.loads(line)["json"] for file in files for line in file.read_text().splitlines())

    folder = folders["batch"]
    eventually(lambda: written(folder), sorted([*RECORDS[:5], RECORDS[7]]))
    bad = {(RECORDS[5].encode(), "no amount"), (RECORDS[6].encode(), "no amount")}
    eventually(lambda: letters(folder), bad)


def test_a_pandas_function_fails_single_rows(folders: dict[str, Path]) -> None:
    folder = folders["pandas"]
    eventually(lambda: parquet(folder / "amounts", "amount"), sorted((amount,) for amount in GOOD.values()))
    bad = {
        (RECORDS[5].encode(), "PERMANENT: JSONDecodeError"),
        (RECORDS[6].encode(), "PERMANENT: KeyError"),
        (RECORDS[7].encode(), "negative amount (in map(parse_many))"),
    }
    eventually(lambda: letters(folder), bad)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _, anchor in (
        link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    ):
        if target.startswith("http"):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs
