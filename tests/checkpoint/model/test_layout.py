from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st
from kazoo.client import KazooClient

from kinesis_trident.checkpoint.model.layout import PART_MARK, Layout, escape, unescape

NAMES = st.text(min_size=1)


@given(NAMES)
def test_a_name_survives_as_a_path_element_that_zookeeper_accepts(name: str) -> None:
    element = escape(name)
    assert unescape(element) == name
    assert element not in (".", "..")
    assert not re.search("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff/]", element)
    assert PART_MARK not in element


@given(NAMES, NAMES)
def test_two_names_never_share_an_element(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty name"):
        escape("")


def test_all_paths_are_below_application_and_stream() -> None:
    layout = Layout("/kinesis-trident/", "my/app", "orders", 17)
    base = "/kinesis-trident/my%2Fapp/orders@17"
    assert layout.base == base
    assert layout.checkpoint_of("shard-0") == f"{base}/checkpoints/shard-0"
    assert layout.inflight_of("..") == f"{base}/inflight/%2E%2E"
    assert layout.pin_of(3, "shard-0") == f"{base}/batches/3/shard-0"
    assert layout.acks_of(3) == f"{base}/acks/3"
    assert layout.external_of("a") == f"{base}/external/a"
    assert layout.deadletters_of("a") == f"{base}/deadletters/a"
    assert layout.fenced_of(4) == f"{base}/fenced/4"
    assert layout.reports_of(4) == f"{base}/reports/4"
    single = [layout.epoch, layout.owner, layout.start, layout.shards, layout.settled, *layout.folders]
    assert len(set(single)) == 13
    assert all(path.rpartition("/")[0] == base for path in single)


@pytest.mark.parametrize("root", ["/", "", "//"])
def test_the_root_may_be_the_root(root: str) -> None:
    assert Layout(root, "app", "s", 1).base == "/app/s@1"


@given(NAMES, st.integers(0, 2**53))
def test_a_layout_is_found_again_from_its_node(stream: str, created: int) -> None:
    layout = Layout("/r", "app", stream, created)
    assert Layout("/r", "app").of_element(layout.base.rpartition("/")[2]) == layout


@pytest.mark.parametrize(
    "name", ["a/b", ".", "..", "tab\there", "\u0085", "\ue000", "\uffff", "50%~", "日本"]
)
def test_zookeeper_takes_escaped_names(client: KazooClient, app: str, name: str) -> None:
    path = f"/{app}/{escape(name)}"
    client.create(path, makepath=True)
    assert [unescape(child) for child in client.get_children(f"/{app}")] == [name]
