"""A place of failed records that cannot be is refused at the start: of a query, and of a batch when it is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from by_hand import Lives, numbers

from kinesis_trident.spout.batch.batch_read import load_streams
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import Quotas, Refuse, ScriptedKinesis

A = "shardId-000000000000"


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        server.put("orders", A, b"1")
        yield server


@pytest.fixture
def begin(server: ScriptedKinesis, make_lives: Callable[..., Lives]) -> Callable[..., Lives]:
    """`begin(**options)`: a query of `orders`."""
    ends = {"onExhausted": "deadLetter"}
    return lambda **options: make_lives(
        endpointUrl=server.endpoint_url, **(ends if "deadLetter" in options else {}), **options
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_text("in the way")
    return found


@pytest.mark.parametrize("option", ["deadLetter", "retrySpool"])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("{file}", "{file} is not a folder"),
        ("{file}/letters/of/mine", "{file} is not a folder"),
        ("{dangling}/letters", "{dangling} is not a folder"),
        ("gopher://host/letters", "is not a folder that pyarrow.fs supports"),
    ],
)
def test_a_folder_that_cannot_be(
    begin: Callable[..., Lives], file: Path, option: str, place: str, says: str
) -> None:
    dangling = file.with_name("dangling")
    dangling.symlink_to("nowhere")
    given = place.format(file=file, dangling=dangling)
    with pytest.raises(OptionsError, match=f"option {option} is '{given}'") as caught:
        begin(**{option: given}).begin(None).plan()
    assert says.format(file=file, dangling=dangling) in str(caught.value)
    assert sorted(os.listdir(file.parent)) == ["dangling", "file"]


@pytest.mark.parametrize(
    ("name", "says"), [("gone", "gone"), ("", "'' is no name of a stream"), ("a/b", "'a/b' is no name")]
)
def test_a_stream_that_is_not_there(begin: Callable[..., Lives], name: str, says: str) -> None:
    with pytest.raises(OptionsError, match="option deadLetter is 'kinesis:") as caught:
        begin(deadLetter=f"kinesis://{name}").begin(None).plan()
    assert says in str(caught.value)
    assert "or a stream that exists" in str(caught.value)


def test_a_batch_is_refused_when_it_is_loaded(server: ScriptedKinesis, file: Path) -> None:
    given = {"streamName": "orders", "region": "us-east-1", "endpointUrl": server.endpoint_url}
    for place in (str(file), "kinesis://gone"):
        with pytest.raises(OptionsError, match="option deadLetter is"):
            load_streams(SourceOptions.parse_batch(given | {"deadLetter": place}))
    load_streams(SourceOptions.parse_batch(given | {"deadLetter": str(file.parent / "new")}))
    assert os.listdir(file.parent) == ["file"]


def test_what_cannot_be_looked_at_refuses_no_start(
    begin: Callable[..., Lives], server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever writes letters may lack the permission to describe their stream."""
    server.create_stream("letters", 1)
    server.script("DescribeStreamSummary", Refuse("AccessDeniedException", "kinesis:DescribeStreamSummary"))
    query = begin(deadLetter="kinesis://letters").begin(None)
    assert numbers(query.batch()) == [1]
    assert "the place of option deadLetter cannot be looked at from here" in caplog.text
