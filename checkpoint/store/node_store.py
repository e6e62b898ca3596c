"""Reading and writing nodes of any size under the epoch: what the parts of the store share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import corrupt, decode, encode
from kinesis_trident.checkpoint.model.layout import unescape
from kinesis_trident.checkpoint.model.nodes import Batch, DeadLettersNode, InflightNode, Node, Pin, ShardsNode
from kinesis_trident.checkpoint.model.split_nodes import (
    PART_SIZE,
    WHOLE,
    head_of,
    is_part,
    join,
    part_paths,
    split,
)
from kinesis_trident.checkpoint.store.fencing import Fencing
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    PACK_SIZE,
    Check,
    Create,
    Delete,
    Found,
    Op,
    Refused,
    Write,
    packed,
)

__all__ = ["NodeStore", "Stored", "left_behind", "stray", "stray_below", "txid_of"]

NodeT = TypeVar("NodeT", bound=Node)

_TORN_READS = 5
_TXID = re.compile(r"(0|[1-9][0-9]{0,17})\Z")


@dataclass(frozen=True, slots=True)
class Stored(Generic[NodeT]):
    """A node as it stands in ZooKeeper: its version, when it was created (czxid), where its parts are."""

    node: NodeT
    version: int
    created: int = 0
    parts: tuple[str, ...] = ()


class NodeStore(Fencing):
    """Typed nodes, split when they are larger than ZooKeeper takes."""

    def _fetch(self, path: str, kind: type[NodeT], *, fresh: bool = False) -> Stored[NodeT] | None:
        return self._fetch_many([path], kind, fresh=fresh)[0]

    def _fetch_many(
        self, paths: Sequence[str], kind: type[NodeT], *, fresh: bool = False
    ) -> list[Stored[NodeT] | None]:
        """The nodes at `paths`, None where there is none; one round trip, a second one for those in parts.

        `fresh`: as in `Session.read`, for what decides and another process has written.
        """
        found = self._fetch_each(dict.fromkeys(paths, kind), fresh=fresh)
        return [found[path] for path in paths]

    def _fetch_each(
        self, kinds: Mapping[str, type[Any]], *, fresh: bool = False
    ) -> dict[str, Stored[Any] | None]:
        """The nodes at paths, each of its kind, as `_fetch_many`."""
        whole: dict[str, Stored[Any] | None] = {}
        asked = list(kinds)
        torn = ""
        for _ in range(_TORN_READS):
            heads = dict(zip(asked, self._session.read(asked, fresh=fresh), strict=True))
            parted = {
                path: part_paths(path, head)
                for path, found in heads.items()
                if found is not None and (head := head_of(found.data)) is not None
            }
            parts = [part for names in parted.values() for part in names]
            held = dict(zip(parts, self._session.read(parts, PART_SIZE), strict=True)) if parts else {}
            asked = []
            for path, found in heads.items():
                names = parted.get(path, [])
                missing = [name for name in names if held[name] is None]
                if missing:
                    # Replaced between the two reads, or damaged: reading again tells.
                    asked.append(path)
                    torn = missing[0]
                else:
                    whole[path] = self._stored(path, found, kinds[path], names, held)
            if not asked:
                return whole
        msg = (
            f"{asked[0]} is kept in parts and {torn} is missing. Nothing was changed. Restore it from a "
            f"backup, or delete {asked[0]} if you accept that what it says is forgotten"
        )
        self._corrupt(CorruptNodeError(msg))
        return whole | dict.fromkeys(asked)

    def _stored(
        self,
        path: str,
        found: Found | None,
        kind: type[NodeT],
        names: list[str],
        held: dict[str, Found | None],
    ) -> Stored[NodeT] | None:
        if found is None:
            return None
        data = found.data
        head = head_of(data) if names else None
        try:
            if head is not None:
                data = join(path, head, [part.data for name in names if (part := held[name]) is not None])
            node = decode(path, data, kind)
            self._check_names(path, node)
        except CorruptNodeError as error:
            self._corrupt(error)
            return None
        return Stored(node, found.stat.version, found.stat.czxid, tuple(names))

    def _check_names(self, path: str, node: Node) -> None:
        """See that the shards a node names are shards of this home."""
        names: Iterable[str] = ()
        if isinstance(node, ShardsNode):
            # Not their parents: one that is no longer listed keeps the name that it had where a stream was read alone.
            names = node.shards
        elif isinstance(node, Batch):
            names = node.plan.positions
        for name in names:
            if not self._names_shard(name):
                raise corrupt(path, f"names {name!r}, which is no shard of this home")

    def _names_shard(self, name: str) -> bool:
        try:
            self.layout.key_of(name)
        except ValueError:
            return False
        return True

    def _children(self, folder: str, *, fresh: bool = False) -> dict[str, str]:
        """The nodes below a folder, parts left out: what their names stand for, to their paths."""
        names = self._session.children([folder], fresh=fresh)[0] or []
        return self._named(folder, [name for name in sorted(names) if not is_part(name)])

    def _named(self, folder: str, elements: Iterable[str]) -> dict[str, str]:
        found = {}
        for element in elements:
            path = f"{folder}/{element}"
            try:
                found[unescape(element)] = path
            except ValueError:
                self._corrupt(stray(path))
        return found

    def _shards_below(self, folder: str) -> dict[str, str]:
        """As `_children`, of a folder with a node a shard."""
        found = {}
        for shard, path in self._children(folder).items():
            if self._names_shard(shard):
                found[shard] = path
            else:
                self._corrupt(stray(path))
        return found

    def _fetch_folder(self, folder: str, kind: type[NodeT]) -> dict[str, Stored[NodeT]]:
        """All nodes below a folder that has one a shard, by shard; two round trips."""
        paths = self._shards_below(folder)
        found = self._fetch_many(list(paths.values()), kind)
        return {name: stored for name, stored in zip(paths, found, strict=True) if stored is not None}

    def _prepare(self, path: str, node: Node, epoch: int, standing: Sequence[str] = ()) -> bytes:
        """The data to write at `path`, its parts already beside it where it needs any; those `standing` are there."""
        # There is one a shard of these, and they are read together.
        whole = WHOLE if isinstance(node, InflightNode | Pin | DeadLettersNode) else None
        data, parts = split(path, encode(node), whole=whole)
        missing = [[Create(part, content)] for part, content in parts.items() if part not in standing]
        for pack in packed(missing, PACK_SIZE):
            self._create_parts(pack, epoch)
        return data

    def _create_parts(self, parts: Sequence[Op], epoch: int) -> None:
        try:
            self._commit(parts, epoch)
        except Refused as refused:
            # The name comes from the content: an earlier attempt has written it.
            if refused.kind is not EXISTS:
                raise
            for part in parts if len(parts) > 1 else ():
                self._create_parts([part], epoch)

    def _create(self, path: str, node: Node, epoch: int, *, where: str | None = None) -> None:
        """Make a node, if `where` exists.

        Raises:
            Refused: it exists, or a parent or `where` does not.
        """
        guard: list[Op] = [Check(where)] if where is not None else []
        self._commit([*guard, Create(path, self._prepare(path, node, epoch))], epoch)

    def _replace(self, path: str, node: Node, found: Stored[NodeT], epoch: int) -> None:
        """Exchange a node for another if it is still as found, and remove the parts it leaves behind.

        Raises:
            Refused: it has changed.
        """
        data = self._prepare(path, node, epoch, found.parts)
        self._commit([Write(path, data, found.version), *left_behind(path, data, found.parts)], epoch)


def stray(path: str) -> CorruptNodeError:
    """What is raised where a node stands in a place that no node of ours has."""
    return CorruptNodeError(
        f"{path} is no node of kinesis-trident: somebody else has made it. Nothing was changed. Look what it "
        "holds, and delete it"
    )


def stray_below(path: str) -> CorruptNodeError:
    """What is raised where a node of ours that has no children has some."""
    return stray(f"what is below {path}")


def txid_of(path: str, name: str) -> int:
    """The txid that a node is named by.

    Raises:
        CorruptNodeError: it is named by something else.
    """
    if _TXID.match(name) is None:
        raise stray(path)
    return int(name)


def left_behind(path: str, data: bytes, parts: Sequence[str]) -> list[Delete]:
    """The removal of a node's former `parts` that `data`, about to stand at `path`, does not name."""
    head = head_of(data)
    kept = set(part_paths(path, head)) if head is not None else set()
    return [Delete(part) for part in dict.fromkeys(parts) if part not in kept]
