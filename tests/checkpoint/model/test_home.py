"""The table of nodes: each kind and each path is in it, and what the store does with nodes is what it says."""

from __future__ import annotations

from release_samples import KINDS

from kinesis_trident.checkpoint.model.home import HOME, Until
from kinesis_trident.checkpoint.model.layout import Layout

PARTS = {"Plan"}
"""A struct of a version of its own that stands within another node."""


def test_each_kind_of_node_is_in_the_table() -> None:
    # Those of an application's names, and of its failed starts, stand above its homes.
    others = {kind.__name__ for kind in KINDS} - {spec.kind.__name__ for spec in HOME if spec.kind}
    assert others == {*PARTS, "NameNode", "FailedStartsNode"}
    assert len({spec.path for spec in HOME}) == len(HOME)


def test_a_path_that_is_not_in_the_table_is_refused() -> None:
    named = {name for name in vars(Layout) if type(vars(Layout)[name]).__name__ == "_Below"}
    assert named == {spec.name for spec in HOME}


def test_folders_and_purges_are_those_of_the_table() -> None:
    names = ["fenced", "checkpoints", "inflight", "batches", "acks", "external", "deadletters", "reports"]
    for layout, more in ((Layout("/r", "a", "s", 1), []), (Layout("/r", "a"), ["start"])):
        assert {path.rpartition("/")[2] for path in layout.folders} == {*names, *more}
    assert {spec.name for spec in HOME if spec.until is Until.BATCH} == {"batches", "acks", "reports"}
    assert set(Layout("/r", "a", "s", 1).nodes_of("x")) == {
        f"/r/a/s@1/{name}/x" for name in ("checkpoints", "inflight", "deadletters")
    }
    assert {spec.name for spec in HOME if spec.split} == {"shards", "inflight", "deadletters"}
    unfenced = [method for spec in HOME for method in spec.unfenced]
    assert len(set(unfenced)) == 8
