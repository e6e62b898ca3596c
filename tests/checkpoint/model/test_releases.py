"""Nodes and offsets of earlier releases are read, and those without new features are read by them.

`releases/` has what each release stores, and the schema of what it reads, written by its own code (`release_samples`).
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import fields
from release_samples import FOLDER, KINDS, LARGE, SAMPLES

from kinesis_trident.checkpoint.errors import CorruptNodeError, NewerFormatError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import BatchNode, InflightNode, Node, Plan
from kinesis_trident.checkpoint.model.split_nodes import head_of, join, part_paths
from kinesis_trident.spout.errors import OffsetError
from kinesis_trident.spout.planner.offsets import offset_from_plan, plan_from_offset

RELEASES = sorted(path.name.removesuffix(".schema.json") for path in FOLDER.glob("*.schema.json"))
NEW_FIELDS: dict[str, str] = {
    "EpochNode.tool": "an older release takes a console's epoch for that of a query that was killed",
    "EpochNode.last": "it goes with EpochNode.tool",
    "CheckpointNode.held": "an older release does not find out that failed records were lost",
    "InflightNode.counted": "an older release drops it, which shows that it has left CheckpointNode.held as it was",
    "SettledNode.begun": "an older release does not find out that checkpoints were lost, and drops the number",
    "SettledNode.stamped": "an older release does not find out that checkpoints are old, and drops the number",
    "BatchOutcome.keys": "an older release retries the records without them: their order is lost, and none of them",
    "ReportNode.keys": "all tasks of a batch, and its driver, are of one release",
    "BackupNode.unreadable": "an older release has nothing to do with bytes that nobody can read",
    "BackupNode.used": "an older release does not raise the txid and the epoch when it imports a copy",
    "DeadLettersNode.replays": "an older release has replayed all that somebody asked for",
    "ExternalNode.again": "an older release has replayed all that somebody asked for",
    "JudgingNode.earlier": "an older release asks for the outcome of more batches: it stops where it need not",
    "Pin.ahead": "an older release plans without it",
    "Pin.first": "an older release reads the records of such a turn again where it cannot name the first",
    "Pin.invalid": "an older release says that the records have expired",
    "StatusNode.accounts": "for the console; a run of the older release replaces the node",
    "Pin.maker": "an older release settles without it, and drops it from a pin that another run reads",
    "Pin.unreadable": "a pin that names such records is of version 2",
    "Plan.adopter": "an older release does not tell apart who has committed a batch that two checkpoints have begun",
    "ReportNode.slow": "for the console; an older release looks at no such node",
    "StopNode.left": "who stops a drain with an older release is not told what was left unread",
    "StopNode.drain": "an older release ends after the current batch: the next start reads the rest",
    "Plan.upto": "an older release reads the batch on, and its shards may drift apart",
    "StatusNode.taken": "shows who else uses a consumer; a run of the older release replaces the node",
    "StatusNode.reads": "shows how fast a query reads; a run of the older release replaces the node",
    "Seen.standing": "for the console; a run of the older release replaces the node",
    "Seen.since": "it goes with Seen.standing",
    "StatusNode.lags": "shows whether a query falls behind; a run of the older release replaces the node",
}
"""Fields that a release does not know, and why it may ignore them; one that it needs raises the version instead."""


@cache
def stored_by(release: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((FOLDER / f"{release}.json").read_text())
    return found


@cache
def schemas_of(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{release}.schema.json").read_text())
    found[BatchNode.__name__] = found.pop("Batch", found.get(BatchNode.__name__))
    return found


def refused_by(release: str, node: Node) -> list[str]:
    """Return what a release finds wrong with a node of today's, of its version 1."""
    schema = {"$ref": f"#/$defs/{type(node).__name__}", "$defs": schemas_of(release)}
    return [error.message for error in Draft202012Validator(schema).iter_errors(json.loads(encode(node)))]


CHUNKED = {
    ("1.0.0", f"{what} of {many}")
    for what, many in (
        ("inflight", "17 runs"),
        ("inflight", "100 runs"),
        ("batch", "90 runs"),
        ("offset", "90 runs"),
        ("outcome", "40 pieces"),
    )
}
"""What that release alone has written, as version 2: runs in chunks, and a large node with the names of its parts."""

STORED = [
    (release, name)
    for release in RELEASES
    for name in SAMPLES
    if name in stored_by(release) and (release, name) not in CHUNKED
]


@pytest.mark.parametrize(("release", "name"), STORED)
def test_what_a_release_has_stored_is_read(release: str, name: str) -> None:
    node, data = SAMPLES[name], stored_by(release)[name]
    assert decode("/path", data.encode(), type(node)) == node
    if isinstance(node, Plan):
        assert plan_from_offset(json.loads(data)) == node


@pytest.mark.parametrize(("release", "name"), sorted(CHUNKED))
def test_what_is_no_longer_read_is_refused_and_says_what_to_do(release: str, name: str) -> None:
    node, data = SAMPLES[name], stored_by(release)[name]
    says = r"was written by another release .*\(version 2 .*\. Use that release again"
    with pytest.raises(NewerFormatError, match=rf"/path {says} until few failed records wait"):
        decode("/path", data.encode(), type(node))
    if isinstance(node, Plan):
        with pytest.raises(OffsetError, match=f"{says}, or start with a new checkpointLocation"):
            plan_from_offset(json.loads(data))


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_that_a_release_has_stored_in_parts_is_read(release: str) -> None:
    stored = stored_by(release)
    data = stored["large"].encode()
    head = head_of(data)
    if "pieces" in json.loads(data):
        # Its parts are named one by one.
        assert (release, head) == ("1.0.0", None)
        with pytest.raises(
            NewerFormatError, match=r"/inflight was written by another release .*\(version 2 "
        ):
            decode("/inflight", data, InflightNode)
        return
    assert head is not None
    data = join("/inflight", head, [stored[path].encode() for path in part_paths("/inflight", head)])
    assert decode("/inflight", data, InflightNode) == LARGE


@pytest.mark.parametrize(("release", "name"), STORED)
def test_what_is_stored_today_is_read_by_a_release(release: str, name: str) -> None:
    data = encode(SAMPLES[name])
    if data.startswith(b'{"v":1,'):
        assert refused_by(release, SAMPLES[name]) == []
    else:
        assert any(count in name for count in ("17 runs", "100 runs", "90 runs", "40 pieces", "1,001 shards"))


def test_a_release_refuses_what_it_cannot_read() -> None:
    """The schemas are no empty words."""
    node = SAMPLES["checkpoint"]
    assert refused_by("1.0.0", node) == []
    wrong = json.loads(encode(node))
    for change in ({"new": 1}, {"sub": "3"}, {"position": "FOO"}):
        schema = {"$ref": "#/$defs/CheckpointNode", "$defs": schemas_of("1.0.0")}
        assert not Draft202012Validator(schema).is_valid(wrong | change)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_field_that_a_release_requires_is_always_there_and_a_new_one_is_optional(
    release: str, kind: type[Node]
) -> None:
    schema = schemas_of(release).get(kind.__name__, {"properties": {}, "required": []})
    today = {field.encode_name: field.required for field in fields(kind)}
    for name in schema["required"]:
        assert today.get(name) is True, f"{release} requires {name} of each {kind.__name__}"
    for name in today.keys() - schema["properties"].keys() if schema["properties"] else ():
        assert not today[name], f"{release} writes no {name}: give it a default"
        assert f"{kind.__name__}.{name}" in NEW_FIELDS, (
            f"{kind.__name__}.{name} is not known to {release}: see the rule in checkpoint/model/nodes.py, and say in "
            "NEW_FIELDS why that release may ignore it, or raise the version of the nodes that have it"
        )


@pytest.mark.parametrize("name", SAMPLES)
def test_defaults_are_left_out_and_the_version_comes_first(name: str) -> None:
    node = SAMPLES[name]
    assert encode(node).startswith(b'{"v":')
    stored = json.loads(encode(node))
    for field in fields(node):
        if getattr(node, field.name) is field.default and stored["v"] == 1:
            assert field.encode_name not in stored


@pytest.mark.parametrize("name", SAMPLES)
def test_a_field_of_a_later_release_is_ignored(name: str) -> None:
    node = SAMPLES[name]
    data = encode(node)
    assert decode("/path", data[:-1] + b',"later":{"a":[1]}}', type(node)) == node
    if isinstance(node, Plan):
        assert plan_from_offset(json.loads(data) | {"later": 1}) == node


def test_a_field_of_a_later_release_is_ignored_at_any_depth() -> None:
    data = b'{"v":1,"txid":1,"waiting":[{"first":"1","last":"1","later":1}],"pending":[{"txid":1,"open":[0,1],"x":1}]}'
    node = decode("/path", data, InflightNode)
    assert (node.waiting[0].first, node.pending[0].txid) == ("1", 1)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_node_of_a_later_version_is_named_as_such(name: str) -> None:
    node = SAMPLES[name]
    data = b'{"v":9,' + encode(node)[7:]
    with pytest.raises(
        NewerFormatError, match=r"/path was written by a newer release .*\(version 9 of its format\)"
    ) as no:
        decode("/path", data, type(node))
    assert "backup" not in str(no.value)
    if isinstance(node, Plan):
        with pytest.raises(OffsetError, match="written by a newer release"):
            plan_from_offset(offset_from_plan(node) | {"v": 9})


MAY_BE_MISTAKEN = {
    "JudgingNode": "*",
    "NameNode": "*",
    "StopNode": "*",
    "SettledNode": "*",
    "StatusNode": "*",
    "ShardsNode": "StatusNode",
}
"""Kinds that hold no records, and kinds that one of them looks like: with fields that the others have too."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_node_at_the_place_of_another_kind_is_an_error(name: str) -> None:
    data, own = encode(SAMPLES[name]), type(SAMPLES[name])
    for kind in KINDS:
        if kind is not own and MAY_BE_MISTAKEN.get(kind.__name__) not in ("*", own.__name__):
            with pytest.raises(CorruptNodeError):
                decode("/path", data, kind)
