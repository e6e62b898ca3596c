"""Names of dependencies that are private stand in one module; each is there, and its absence costs speed at most.

`tests/e2e/test_private_names_of_spark.py` has those of Spark.
"""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import fastavro
import pytest
from kazoo.client import KazooClient
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.checkpoint.zookeeper.operations import Check, Create, Delete, Refused, Write
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common import private_names
from kinesis_trident.common.private_names import MissingNameError, using

ROOT = Path(__file__).resolve().parent.parent
MODULE = "kinesis_trident/common/private_names.py"
PACKAGES = ("tracker", "checkpoint", "spout", "bolt", "trident", "console")
FILES = [
    path
    for folder in (ROOT / "kinesis_trident", *(ROOT / one for one in PACKAGES))
    for path in sorted(folder.rglob("*.py"))
    if str(path.relative_to(ROOT)) != MODULE and not path.is_symlink()
]

DOCUMENTED = {"_replace", "_make", "_asdict", "_fields", "_exit", "_value_"}
"""Of named tuples, of `os`, and of enums."""

OURS = {
    ("bolt/storm/bolt_task.py", "_begin"),
    ("bolt/storm/bolt_task.py", "_end"),
    ("bolt/storm/checks.py", "_given"),
    ("bolt/storm/collector.py", "_finish"),
    ("bolt/storm/received.py", "_row"),
    ("bolt/storm/topology.py", "_driver_local"),
    ("bolt/storm/topology.py", "_place"),
    ("spout/failed_records/dead_letters.py", "_typeshed"),
    ("trident/topology.py", "_group"),
}
"""Of a class of ours in another module, such as hooks of a bolt beside a user's own methods; for types alone."""


def private_uses(path: Path) -> Iterator[str]:
    """Yield the names with an underscore that a file takes from objects, or modules, that are not its own."""
    tree = ast.parse(path.read_text())
    place = str(path.relative_to(ROOT))
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(attr=name, value=value) if ast.unparse(value) not in ("self", "cls"):
                names = [name]
            case ast.ImportFrom(module=str(module), names=found) if not module.startswith("kinesis_trident"):
                names = [*module.split("."), *(alias.name for alias in found)]
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                names = [name]
        for name in names:
            is_private = name.startswith("_") and not name.startswith("__") and name != "_"
            if is_private and name not in own | DOCUMENTED and (place, name) not in OURS:
                yield f"{place}:{node.lineno} {name}"  # type: ignore[attr-defined]


def test_private_names_stand_in_one_module() -> None:
    assert len(FILES) > 300
    assert [use for path in FILES for use in private_uses(path)] == []


def test_the_search_finds_each_form_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_private_names.ROOT", tmp_path)
    path = tmp_path / "one.py"
    path.write_text(
        "from kazoo.protocol.paths import _prefix_root\nfrom kinesis_trident.x import _ours\nframe._jdf\n"
        "hasattr(frame, '_plan')\nself._own\nself._client._stopped\nx = row._replace(a=1)\n"
    )
    assert [use.split()[-1] for use in private_uses(path)] == ["_prefix_root", "_jdf", "_plan", "_stopped"]


# Where a name is missing.


@contextmanager
def absent(package: str, name: str, _instead: str) -> Iterator[None]:
    """Let no private name be there."""
    msg = f"{package} lacks {name}"
    raise MissingNameError(msg)
    yield


def test_a_name_that_is_missing_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_names, "_said", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with (
                pytest.raises(MissingNameError, match=r"kazoo [\d.]+ lacks KazooClient._call"),
                using("kazoo", "KazooClient._call", "nodes are read one by one"),
            ):
                raise AttributeError
    assert len(caplog.messages) == 1
    assert "so nodes are read one by one" in caplog.messages[0]


@pytest.mark.parametrize(
    ("error", "is_missing"),
    [
        (AttributeError("'DataFrame' object has no attribute '_jdf'"), True),
        (TypeError("'JavaPackage' object is not callable"), True),
        (ImportError("cannot import name 'BYTES_TYPE'"), True),
        (Py4JError("Method pickedPartition([]) does not exist"), True),
        (Py4JNetworkError("Answer from Java side is empty"), False),
        (OSError("connection refused"), False),
    ],
)
def test_only_what_shows_that_a_name_is_missing_counts_as_that(error: Exception, is_missing: bool) -> None:
    with (
        pytest.raises(MissingNameError if is_missing else type(error)),
        using("pyspark", "a name", "nothing"),
    ):
        raise error


def test_an_error_of_java_is_no_missing_name() -> None:
    client = SimpleNamespace(send_command=lambda _: "", is_connected=lambda: False, converters=())
    java = SimpleNamespace(_target_id="o1", _gateway_client=client)
    with pytest.raises(Py4JJavaError), using("pyspark", "a name", "nothing"):
        raise Py4JJavaError("a job failed", java)  # type: ignore[no-untyped-call]


# kazoo.


@pytest.fixture
def client(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[KazooClient]:
    """A client in a folder of the test's own."""
    root = connect(ZooKeeperConfig(zookeeper.hosts))
    root.ensure_path(f"/{app}")
    one = connect(ZooKeeperConfig(f"{zookeeper.hosts}/{app}"))
    yield one
    for each in (one, root):
        each.stop()
        each.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_nodes_are_read_and_written_without_kazoos_private_call(
    client: KazooClient, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(private_names, "_said", set())
    if not is_there:
        monkeypatch.setattr(private_names, "using", absent)
    session = Session(client, 20)
    assert session.commit([Create("/a", b"1"), Create("/a/b", b"", ephemeral=True), Create("/c", b"3")])
    assert session.commit([Check("/a", 0), Write("/a", b"2", 0), Delete("/c")])
    found = session.read(["/a", "/c", "/a/b", "/"])
    assert [one and (one.data, one.stat.version) for one in found] == [(b"2", 1), None, (b"", 0), (b"", 0)]
    assert found[2] is not None
    assert found[2].stat.ephemeralOwner == client.client_id[0]
    with pytest.raises(Refused, match="/a cannot be written: it was changed meanwhile") as refused:
        session.commit([Write("/a/b", b"x"), Write("/a", b"3", 0), Delete("/a/b")])
    assert refused.value.index == 1
    with pytest.raises(Refused, match="/a cannot be written: it has children"):
        session.commit([Delete("/a"), Create("/d")])
    assert client.get("/a/b")[0] == b""
    # Nobody was told that a name is missing where it is there.
    assert private_names._said == set()


def test_a_call_after_the_connection_is_closed_ends_without_kazoos_private_call_too(
    client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_names, "using", absent)
    client.stop()
    with pytest.raises(CheckpointError, match="was closed before /a was answered"):
        Session(client, 20).commit([Create("/a")])


# pyiceberg.


def test_the_options_of_files_are_those_of_the_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/bolt/test_iceberg.py` writes by them, and without them."""
    found = private_names.parquet_options({"write.parquet.compression-codec": "gzip"})
    assert (found["compression"], found["data_page_size"]) == ("gzip", 1 << 20)
    monkeypatch.setattr(private_names, "using", absent)
    with pytest.raises(MissingNameError):
        private_names.parquet_options({})


# fastavro.


def test_the_reader_in_python_reads_as_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/bolt/registry/test_registry.py` gives it a value without end."""
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "v", "type": "int"}]})
    assert private_names.avro_reader_in_python()(io.BytesIO(b"\2"), schema, None) == {"v": 1}
    monkeypatch.setattr(private_names, "using", absent)
    with pytest.raises(MissingNameError):
        private_names.avro_reader_in_python()
