"""The layout in ZooKeeper: the paths of one application's state, and the names of its shards. Pure.

A source of one stream has its home below `<application>/<stream>@<creation time>`, where a shard's name is its id.
One of several streams has its home below `<application>/@streams`, where a shard's name is `<stream>@<creation
time>/<id>`: there is one plan, one epoch and one txid for all of them, and a stream that is created again under its
name is another stream, with no known shards.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import xxhash

from kinesis_trident.checkpoint.model.home import HOME, Absence, OnePer, Until
from kinesis_trident.checkpoint.model.nodes import Node

PART_MARK = "~"
"""Used only in the names of parts of large nodes (`checkpoint.model.split_nodes`): other names have it escaped."""

PAST_RETENTION = "past-retention"
"""Used instead of a shard's id for all forgotten shards of a stream: holds their dead letters together."""

# The characters that ZooKeeper refuses in a path (PathUtils.validatePath), the path separator, and our two marks.
_ESCAPED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff/%~]")
_DOTS = {".": "%2E", "..": "%2E%2E"}
_CODES = re.compile("((?:%[0-9A-Fa-f]{2})+)")


@lru_cache(maxsize=32_768)
def escape(name: str) -> str:
    """Return a name as one path element that ZooKeeper accepts; UTF-8 percent codes replace forbidden characters.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        msg = "an empty name cannot be part of a ZooKeeper path"
        raise ValueError(msg)
    return _DOTS.get(name) or _ESCAPED.sub(_percent, name)


def unescape(element: str) -> str:
    """Return the name of a path element: the inverse of `escape`.

    Raises:
        ValueError: `escape` never returns such an element.
    """
    name = _CODES.sub(
        lambda codes: bytes.fromhex(codes[1].replace("%", "")).decode("utf-8", "surrogatepass"), element
    )
    if escape(name) != element:
        msg = f"{element[:200]!r} is not a name that kinesis-trident writes"
        raise ValueError(msg)
    return name


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=64)
def _base(root: str, application: str, stream: str, created: int) -> str:
    # Needed for every path of every shard.
    element = f"{escape(stream)}@{created}" if stream else _SEVERAL
    return f"{Layout.application_path(root, application)}/{element}"


_SEVERAL = "@streams"
"""The home of a source of several streams; no stream has the empty name."""


@dataclass(frozen=True, slots=True, order=True)
class ShardKey:
    """A shard of a stream; `created` is the stream's creation time in epoch milliseconds."""

    stream: str
    created: int
    shard: str

    @property
    def source(self) -> str:
        """`stream/shardId`, the beginning of message ids."""
        return f"{self.stream}/{self.shard}"


_NAMES = dict.fromkeys(spec.name for spec in HOME)


class _Below:
    """The path of a node below the `base` of a layout, which has the name of the attribute; `HOME` says what it is."""

    def __set_name__(self, _layout: type, name: str) -> None:
        assert name in _NAMES, f"{name} is not in the table of nodes"
        self._name = name

    def __get__(self, layout: Layout, _kind: type) -> str:
        return f"{layout.base}/{self._name}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one application that reads one stream, or, without a stream, several at once.

    `root` is the option `zookeeper.root`; `created` is the stream's creation time in epoch milliseconds: a
    stream created again under the same name is another stream. `earlier` are the names that the application
    had before it was renamed: its nodes stand below the first one.
    """

    root: str
    application: str
    stream: str = ""
    created: int = 0
    earlier: tuple[str, ...] = ()

    streams = _Below()
    epoch = _Below()
    past = _Below()
    owner = _Below()
    fenced = _Below()
    start = _Below()
    shards = _Below()
    settled = _Below()
    judging = _Below()
    failing = _Below()
    states = _Below()
    stop = _Below()
    status = _Below()
    ends = _Below()
    checkpoints = _Below()
    inflight = _Below()
    batches = _Below()
    acks = _Below()
    reports = _Below()
    external = _Below()
    paused = _Below()
    rejected = _Below()
    sent = _Below()
    audit = _Below()
    backups = _Below()
    deadletters = _Below()

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that tell applications apart, also those of one name below different roots."""
        return xxhash.xxh32_hexdigest(self.parent.encode())

    @property
    def identity(self) -> str:
        """The name by which sinks, states and Spark's checkpoint know the application: its first one."""
        return self.earlier[0] if self.earlier else self.application

    @property
    def names(self) -> tuple[str, ...]:
        """All names that the application has had, the first one first."""
        return tuple(dict.fromkeys((*self.earlier, self.application)))

    @property
    def parent(self) -> str:
        """The parent of all homes of the application."""
        return Layout.application_path(self.root, self.identity)

    @property
    def several(self) -> bool:
        """True for the home of a source of several streams."""
        return not self.stream

    @property
    def what(self) -> str:
        """The stream or streams of this state, for errors."""
        return "several streams" if self.several else f"stream {self.stream!r}"

    def name_of(self, key: ShardKey) -> str:
        """Return a shard's name in this home: in plans, nodes and outcomes.

        Raises:
            ValueError: this is the home of another stream.
        """
        if self.several:
            return f"{key.stream}@{key.created}/{key.shard}"
        if (key.stream, key.created) != (self.stream, self.created):
            msg = f"{self.base} is not the home of stream {key.stream!r} created at {key.created}"
            raise ValueError(msg)
        return key.shard

    def key_of(self, name: str) -> ShardKey:
        """Return the shard of a name: the inverse of `name_of`.

        Raises:
            ValueError: it is not the name of a shard here.
        """
        if not self.several:
            return ShardKey(self.stream, self.created, name)
        stream, _, rest = name.partition("@")
        created, _, shard = rest.partition("/")
        if not (stream and shard):
            msg = f"{name[:200]!r} is not the name of a shard below {self.base}"
            raise ValueError(msg)
        return ShardKey(stream, int(created), shard)

    def said_of(self, names: str) -> str:
        """Return for people the shards of which all names begin so: all, those of a stream, or one."""
        if not names:
            return "all shards"
        if names.endswith("/"):
            return f"stream {names.rpartition('@')[0]}"
        return f"shard {self.source_of(names)}"

    def source_of(self, name: str) -> str:
        """Return `stream/shardId` of a name, the beginning of message ids.

        Raises:
            ValueError: as `key_of`.
        """
        return self.key_of(name).source if self.several else f"{self.stream}/{name}"

    def of_element(self, element: str) -> Layout:
        """Return the layout of another home of the application, by the child of `parent`, as the console finds them.

        Raises:
            ValueError: the element is neither of the form `stream@created` nor `@streams`.
        """
        stream, _, created = ("", "", "0") if element == _SEVERAL else element.rpartition("@")
        name = unescape(stream) if stream else ""
        found = replace(self, stream=name, created=int(created))
        if not found.base.endswith(f"/{element}"):
            msg = f"{element[:200]!r} is not the home of a stream"
            raise ValueError(msg)
        return found

    @staticmethod
    def root_path(root: str) -> str:
        """Return the root as a path: one leading slash, none at the end; the empty string for `/`."""
        return "".join(f"/{element}" for element in root.split("/") if element)

    @staticmethod
    def application_path(root: str, application: str) -> str:
        """Return the parent of all streams' states of an application."""
        return f"{Layout.root_path(root)}/{escape(application)}"

    @property
    def base(self) -> str:
        """The parent of everything of this application and stream."""
        return _base(self.root, self.identity, self.stream, self.created)

    @property
    def element(self) -> str:
        """The last part of `base`: the name of this state among those of the application."""
        return self.base.rpartition("/")[2]

    def start_of(self, stream: str, created: int) -> str:
        """Return the node of a stream's LATEST, resolved to a time."""
        return f"{self.start}/{escape(stream)}@{created}" if self.several else self.start

    @property
    def folders(self) -> tuple[str, ...]:
        """The nodes that are only parents of others, and that each home has."""
        made = dict.fromkeys(
            spec.name for spec in HOME if spec.is_folder or (self.several and spec.one_per is OnePer.STREAM)
        )
        return tuple(f"{self.base}/{name}" for name in made)

    @property
    def needed_folders(self) -> frozenset[str]:
        """The folders without which a query does not start, because what they held is lost with them."""
        needed = {spec.name for spec in HOME if spec.absence in (Absence.STOPS, Absence.NO_BATCH)}
        return frozenset(f"{self.base}/{name}" for name in needed).intersection(self.folders)

    def nodes_of(self, shard: str) -> dict[str, type[Node]]:
        """Return the nodes of a shard that go with it, path to kind."""
        return {
            f"{self.base}/{spec.name}/{escape(shard)}": spec.kind
            for spec in HOME
            if spec.until is Until.SHARD and spec.kind is not None
        }

    def checkpoint_of(self, shard: str) -> str:
        """Return the node of a shard's safe checkpoint."""
        return f"{self.checkpoints}/{escape(shard)}"

    def inflight_of(self, shard: str) -> str:
        """Return the node of a shard's unfinished records."""
        return f"{self.inflight}/{escape(shard)}"

    def deadletters_of(self, shard: str) -> str:
        """Return the node of a shard's dead letter counts."""
        return f"{self.deadletters}/{escape(shard)}"

    def external_of(self, shard: str) -> str:
        """Return the folder of other processes' requests for a shard."""
        return f"{self.external}/{escape(shard)}"

    def fenced_of(self, epoch: int) -> str:
        """Return the node of the run that had `epoch` and had to stop."""
        return f"{self.fenced}/{epoch}"

    def batch_of(self, txid: int) -> str:
        """Return the node of a batch's plan, the parent of its pins."""
        return f"{self.batches}/{txid}"

    def nodes_of_batch(self, txid: int, pinned: Iterable[str], *, outcome: bool) -> tuple[str, ...]:
        """Return the nodes of a batch in the order of their removal: the pins, the outcome, the plan."""
        published = (self.acks_of(txid),) if outcome else ()
        return (*(self.pin_of(txid, shard) for shard in pinned), *published, self.batch_of(txid))

    def pin_of(self, txid: int, shard: str) -> str:
        """Return the node of the pin of one shard's turn in a batch."""
        return f"{self.batches}/{txid}/{escape(shard)}"

    def acks_of(self, txid: int) -> str:
        """Return the node of a batch's outcome."""
        return f"{self.acks}/{txid}"

    def reports_of(self, txid: int) -> str:
        """Return the folder of a batch's task reports."""
        return f"{self.reports}/{txid}"


def name_of_home(element: str) -> str:
    """Return the stream of a home by its `Layout.element`; the empty string for that of several streams."""
    return element.rpartition("@")[0]


def is_followed_by(before: str, home: str, merged: Collection[str] = ()) -> bool:
    """Return whether a home goes on with the batches of another one: both are elements of layouts.

    A stream that was created again has its old name. `merged`: the homes that the streams of `home` had while they were
    read alone.
    """
    return name_of_home(before) in {name_of_home(one) for one in (home, *merged)}
