"""Where everything stands in ZooKeeper: the paths of one application's state, and the names of its shards. Pure.

A source of one stream has its home below `<application>/<stream>@<creation time>`, where a shard's name is its id.
One of several streams has its home below `<application>/@streams`, where a shard's name is `<stream>@<creation
time>/<id>`: there is one plan, one epoch and one txid for all of them, and a stream made again under its name is
another one whose shards nothing is known of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["PART_MARK", "PAST_RETENTION", "Layout", "ShardKey", "escape", "unescape"]

PART_MARK = "~"
"""Stands only in the names of parts of large nodes (`checkpoint.model.split_nodes`): other names have it escaped."""

PAST_RETENTION = "past-retention"
"""Stands in the place of a shard's id for all those of a stream that are forgotten: their dead letters together."""

# What ZooKeeper refuses in a path (PathUtils.validatePath), the path separator, and our own two marks.
_ESCAPED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff/%~]")
_DOTS = {".": "%2E", "..": "%2E%2E"}
_CODES = re.compile("((?:%[0-9A-Fa-f]{2})+)")


def escape(name: str) -> str:
    """A name as one path element that ZooKeeper accepts; UTF-8 percent codes stand for what it forbids.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        msg = "an empty name cannot stand in a ZooKeeper path"
        raise ValueError(msg)
    return _DOTS.get(name) or _ESCAPED.sub(_percent, name)


def unescape(element: str) -> str:
    """The inverse of `escape`.

    Raises:
        ValueError: `escape` gives no such element.
    """
    name = _CODES.sub(
        lambda codes: bytes.fromhex(codes[1].replace("%", "")).decode("utf-8", "surrogatepass"), element
    )
    if escape(name) != element:
        msg = f"{element!r} is no name of ours"
        raise ValueError(msg)
    return name


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=64)
def _base(root: str, application: str, stream: str, created: int) -> str:
    # Asked for with every path of every shard.
    element = f"{escape(stream)}@{created}" if stream else _SEVERAL
    return f"{Layout.application_path(root, application)}/{element}"


_SEVERAL = "@streams"
"""The home of a source of several streams; no stream has the empty name."""


@dataclass(frozen=True, slots=True, order=True)
class ShardKey:
    """Which shard of which stream; `created` is the stream's creation time in epoch milliseconds."""

    stream: str
    created: int
    shard: str

    @property
    def source(self) -> str:
        """`stream/shardId`, as message ids begin."""
        return f"{self.stream}/{self.shard}"


@dataclass(frozen=True, slots=True)
class Layout:
    """All paths of one application reading one stream, or, without a stream, several at once.

    `root` is the option `zookeeper.root`; `created` is the stream's creation time in epoch milliseconds: a
    stream created again under the same name is another stream.
    """

    root: str
    application: str
    stream: str = ""
    created: int = 0

    @property
    def several(self) -> bool:
        """Whether this is the home of a source of several streams."""
        return not self.stream

    @property
    def what(self) -> str:
        """Whose state this is, for errors."""
        return "several streams" if self.several else f"stream {self.stream!r}"

    def name_of(self, key: ShardKey) -> str:
        """A shard's name here, in plans, nodes and outcomes.

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
        """Which shard a name stands for: the inverse of `name_of`.

        Raises:
            ValueError: it is no name of a shard here.
        """
        if not self.several:
            return ShardKey(self.stream, self.created, name)
        stream, _, rest = name.partition("@")
        created, _, shard = rest.partition("/")
        if not (stream and shard):
            msg = f"not the name of a shard below {self.base}: {name!r}"
            raise ValueError(msg)
        return ShardKey(stream, int(created), shard)

    @classmethod
    def parse(cls, root: str, application: str, element: str) -> Layout:
        """Rebuild a layout from a child of `application_path`, as the console finds them.

        Raises:
            ValueError: the element is neither of the form `stream@created` nor `@streams`.
        """
        if element == _SEVERAL:
            return cls(root, application)
        stream, _, created = element.rpartition("@")
        found = cls(root, application, unescape(stream), int(created))
        if not stream or not found.base.endswith(f"/{element}"):
            msg = f"{element!r} is no home of a stream"
            raise ValueError(msg)
        return found

    @staticmethod
    def root_path(root: str) -> str:
        """The root as a path: one leading slash, none at the end; the empty string for `/`."""
        return "".join(f"/{element}" for element in root.split("/") if element)

    @staticmethod
    def application_path(root: str, application: str) -> str:
        """The parent of all streams' states of an application."""
        return f"{Layout.root_path(root)}/{escape(application)}"

    @property
    def base(self) -> str:
        """Everything of this application and stream is below."""
        return _base(self.root, self.application, self.stream, self.created)

    @property
    def streams(self) -> str:
        """Which streams have their home here, where there are several."""
        return f"{self.base}/streams"

    @property
    def epoch(self) -> str:
        """Raised by each start; its version is the epoch."""
        return f"{self.base}/epoch"

    @property
    def owner(self) -> str:
        """The ephemeral node of the running process, to look at."""
        return f"{self.base}/owner"

    @property
    def fenced(self) -> str:
        """The folder of takeovers: one node a run that had to stop, named by its epoch."""
        return f"{self.base}/fenced"

    @property
    def start(self) -> str:
        """LATEST resolved to a time; with several streams the folder of those, a node a stream."""
        return f"{self.base}/start"

    def start_of(self, stream: str, created: int) -> str:
        """The node of a stream's LATEST, resolved to a time."""
        return f"{self.start}/{escape(stream)}@{created}" if self.several else self.start

    @property
    def shards(self) -> str:
        """The lineage."""
        return f"{self.base}/shards"

    @property
    def settled(self) -> str:
        """The newest settled txid."""
        return f"{self.base}/settled"

    @property
    def judging(self) -> str:
        """The newest run whose driver judges its records."""
        return f"{self.base}/judging"

    @property
    def stop(self) -> str:
        """The request that the running query ends after the batch in hand."""
        return f"{self.base}/stop"

    @property
    def checkpoints(self) -> str:
        """The folder of safe checkpoints, a node a shard."""
        return f"{self.base}/checkpoints"

    @property
    def inflight(self) -> str:
        """The folder of what is not done, a node a shard."""
        return f"{self.base}/inflight"

    @property
    def batches(self) -> str:
        """The folder of plans; the pins are below each."""
        return f"{self.base}/batches"

    @property
    def acks(self) -> str:
        """The folder of outcomes."""
        return f"{self.base}/acks"

    @property
    def reports(self) -> str:
        """The folder of task reports where there is no SparkContext."""
        return f"{self.base}/reports"

    @property
    def external(self) -> str:
        """The folder of what other processes ask for, a folder a shard."""
        return f"{self.base}/external"

    @property
    def rejected(self) -> str:
        """The folder of what other processes asked for in a way that cannot be read, to look at."""
        return f"{self.base}/rejected"

    @property
    def deadletters(self) -> str:
        """The folder of dead letter counts, a node a shard."""
        return f"{self.base}/deadletters"

    @property
    def folders(self) -> tuple[str, ...]:
        """The nodes that are only parents of others."""
        return (
            self.fenced,
            self.checkpoints,
            self.inflight,
            self.batches,
            self.acks,
            self.reports,
            self.external,
            self.deadletters,
            *([self.start] if self.several else []),
        )

    def checkpoint_of(self, shard: str) -> str:
        """The node of a shard's safe checkpoint."""
        return f"{self.checkpoints}/{escape(shard)}"

    def inflight_of(self, shard: str) -> str:
        """The node of what is not done in a shard."""
        return f"{self.inflight}/{escape(shard)}"

    def deadletters_of(self, shard: str) -> str:
        """The node of a shard's dead letter counts."""
        return f"{self.deadletters}/{escape(shard)}"

    def external_of(self, shard: str) -> str:
        """The folder of what other processes ask for in a shard."""
        return f"{self.external}/{escape(shard)}"

    def fenced_of(self, epoch: int) -> str:
        """The node of the run that had `epoch` and had to stop."""
        return f"{self.fenced}/{epoch}"

    def batch_of(self, txid: int) -> str:
        """The plan of a batch, parent of its pins."""
        return f"{self.batches}/{txid}"

    def pin_of(self, txid: int, shard: str) -> str:
        """The pin of one shard's turn in a batch."""
        return f"{self.batches}/{txid}/{escape(shard)}"

    def acks_of(self, txid: int) -> str:
        """The outcome of a batch."""
        return f"{self.acks}/{txid}"

    def reports_of(self, txid: int) -> str:
        """The folder of a batch's task reports."""
        return f"{self.reports}/{txid}"
