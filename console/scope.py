"""The scope of a command: the homes, streams and shards of an application that its words mean.

No other module of the console decides that. A look may be about several of them; a change has one meaning, or says all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION, ShardKey
from kinesis_trident.checkpoint.model.message_id import source_of
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.console.snapshot import Snapshot, take_snapshot
from kinesis_trident.console.target import ConsoleError, Target, open_stores
from kinesis_trident.console.text import some_of

_CREATED = re.compile("@[0-9]+(?=/)")
"""The creation time in a shard's name in a home of several streams; its label is the rest."""


@dataclass(frozen=True, slots=True)
class ShardRef:
    """A shard of an application.

    Attributes:
        store: of its home.
        name: as its nodes have it there.
        key: its stream and its id.
        label: as people can type it after --shard, without --stream.
    """

    store: SourceStore
    name: str
    key: ShardKey
    label: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What a command is about.

    Attributes:
        stores: of the homes that have a stream that is meant.
        streams: those that are meant; None for all.
        shard: a shard as it was typed: its id, `stream/id` or its name in a home of several streams; None for all.
        homes: the streams of each home of the application by its path, name to creation time.
    """

    stores: tuple[SourceStore, ...]
    streams: frozenset[str] | None
    shard: str | None
    homes: Mapping[str, Mapping[str, int]]

    @property
    def said(self) -> str:
        """The choice in words that follow a noun, such as ` of shard orders/shardId-000000000000`; empty for all."""
        if self.shard is not None:
            return f" of shard {self.shard}"
        return f" of stream {', '.join(sorted(self.streams))}" if self.streams is not None else ""

    def streams_of(self, store: SourceStore) -> dict[str, int]:
        """Return the streams of a home that are meant, name to creation time."""
        every = self.homes[store.layout.base]
        return {name: at for name, at in every.items() if self.streams is None or name in self.streams}

    def identities(self) -> dict[str, tuple[int, str]]:
        """Return by stream when it was created, of one that was created again the newest, and its account if known."""
        found: dict[str, tuple[int, str]] = {}
        for store in self.stores:
            status = store.status.get()
            accounts = status.accounts if status is not None else {}
            for stream, created in self.streams_of(store).items():
                found[stream] = max(found.get(stream, (0, "")), (created, accounts.get(stream, "")))
        return found

    def takes(self, message_id: str) -> bool:
        """Return whether a message id is of a shard that is meant, also of one that no node knows."""
        source = source_of(message_id)
        stream, _, shard = source.partition("/")
        if self.streams is not None and stream not in self.streams:
            return False
        return self.shard is None or _CREATED.sub("", self.shard) in (shard, source)

    def among(self, store: SourceStore, names: Iterable[str]) -> list[ShardRef]:
        """Return the shards that are meant, of these names in a home."""
        return list(filter(self._is_meant, self.refs(store, names)))

    def shards_of(self, store: SourceStore) -> Callable[[str], bool]:
        """Return a test of a shard's name in a home: it is meant, and of no stream that was created again since."""
        return lambda name: any(self._is_newest(store, ref.key) for ref in self.among(store, (name,)))

    def refs(self, store: SourceStore, names: Iterable[str]) -> list[ShardRef]:
        """Return the shards of these names in a home, meant or not."""
        alone = sum(map(len, self.homes.values())) == 1 and not store.layout.several
        found = []
        for name in sorted(names):
            # A parent may have another form of name, if it was removed before its stream was read with others.
            with suppress(ValueError):
                key = store.layout.key_of(name)
                label = key.shard if alone else key.source if self._is_newest(store, key) else name
                found.append(ShardRef(store, name, key, label))
        return found

    def one_shard(self, action: str) -> ShardRef:
        """Return the shard that an action is about, which has to be named.

        Raises:
            ConsoleError: it is not named, there is none, or several are called so; the labels can be typed.
        """
        known = self._known()
        if self.shard is None:
            labels = self._labels(known) or "there is none yet"
            msg = f"{action} is about one shard. Name it with --shard: {labels}"
            raise ConsoleError(msg)
        (ref,) = self.pick(known)
        return ref

    def pick(self, known: Sequence[ShardRef]) -> list[ShardRef]:
        """Return the shards that a change is about, of those there are: one, if one is named.

        Raises:
            ConsoleError: there is none, or several are called so; the labels can be typed.
        """
        found = list(filter(self._is_meant, known))
        if self.shard is None or len(found) == 1:
            return found
        raise self._several(ref.label for ref in found) if found else self._no_shard(known)

    def check_records(self, named: Sequence[str], others: Iterable[str] = (), *, change: bool) -> None:
        """Check that a command about single records has a meaning.

        Args:
            named: the message ids that were typed.
            others: those of letters, whose shards count as known.
            change: several shards of the same id are not meant together.

        Raises:
            ConsoleError: a named record is of another stream or shard, there is no such shard, or several are.
        """
        strange = [message_id for message_id in named if not self.takes(message_id)]
        if strange:
            msg = f"{some_of(strange, 3)} is not{self.said}. Check the message ids, --stream and --shard"
            raise ConsoleError(msg)
        if self.shard is None:
            return
        known = self._known()
        labels = {source_of(text): source_of(text) for text in others if self.takes(text)}
        labels |= {ref.key.source: ref.label for ref in known if self._is_meant(ref)}
        if not (named or labels):
            raise self._no_shard(known)
        if change and not named and len(labels) > 1:
            raise self._several(labels.values())

    def one_home(self) -> SourceStore:
        """Return the only home that is meant.

        Raises:
            ConsoleError: there are several; the streams can be typed.
        """
        if len(self.stores) == 1:
            return self.stores[0]
        if self.shard is not None:
            return self.pick(self._known())[0].store
        ways = " or ".join(f"--stream {self._all_of(store)}" for store in self.stores)
        msg = f"application {self._application!r} has several homes, and this is about one. Give {ways}"
        raise ConsoleError(msg)

    def whole_home(self, action: str) -> SourceStore:
        """Return the only home that is meant, for an action that is about everything in it.

        Raises:
            ConsoleError: there are several, or not all that stands there is meant.
        """
        store = replace(self, shard=None).one_home()
        self.check_whole(store, action)
        return store

    def check_whole(self, store: SourceStore, action: str) -> None:
        """Check that everything in a home is meant.

        Raises:
            ConsoleError: it is not; the error names what else the action touches.
        """
        every = self._all_of(store)
        if self.shard is not None or len(self.streams_of(store)) < len(self.homes[store.layout.base]):
            msg = (
                f"{action} is about all shards of {every.replace(',', ', ')}, whose state is in one place "
                f"({store.layout.base}), not{self.said} alone. Give --stream {every}"
            )
            raise ConsoleError(msg)

    def snapshots(self) -> list[Snapshot]:
        """Take snapshots of what is meant: one of each home, without those that do not have a shard that is named.

        Raises:
            ConsoleError: no home has such a shard.
            CheckpointError: ZooKeeper does not answer.
        """
        found, known = [], []
        for store in self.stores:
            snapshot = replace(take_snapshot(store), beside=len(self.homes) > 1)
            refs = self.refs(store, {*snapshot.shard_ids, *snapshot.dead_letters})
            known += refs
            meant = frozenset(ref.name for ref in refs if self._is_meant(ref))
            streams = self.streams_of(store)
            if self.shard is None and len(streams) == len(self.homes[store.layout.base]):
                found.append(snapshot)
            elif self.shard is None or meant:
                found.append(snapshot.only(meant, streams))
        if not found:
            raise self._no_shard(known)
        return found

    @property
    def _application(self) -> str:
        return self.stores[0].layout.application

    def _is_meant(self, ref: ShardRef) -> bool:
        if self.streams is not None and ref.key.stream not in self.streams:
            return False
        if self.shard in (None, ref.name):
            return True
        return self._is_newest(ref.store, ref.key) and self.shard in (ref.key.shard, ref.key.source)

    def _is_newest(self, store: SourceStore, key: ShardKey) -> bool:
        """Return False for a shard of a stream that was created again since: only its name tells it from a new one."""
        return self.homes[store.layout.base].get(key.stream, key.created) == key.created

    def _known(self) -> list[ShardRef]:
        return [ref for store in self.stores for ref in self.refs(store, _names(store))]

    def _all_of(self, store: SourceStore) -> str:
        return ",".join(sorted(self.homes[store.layout.base]))

    def _labels(self, known: Iterable[ShardRef]) -> str:
        return some_of(ref.label for ref in known if self.streams is None or ref.key.stream in self.streams)

    def _no_shard(self, known: Iterable[ShardRef]) -> ConsoleError:
        return ConsoleError(
            f"application {self._application!r} has no shard {self.shard}; it has {self._labels(known) or 'none yet'}. "
            "Choose one with --shard"
        )

    def _several(self, labels: Iterable[str]) -> ConsoleError:
        ways = " or ".join(f"--shard {label}" for label in sorted(labels))
        return ConsoleError(f"application {self._application!r} has several shards {self.shard}. Give {ways}")


@contextmanager
def open_scope(target: Target, shard: str | None = None, homes: Iterable[str] = ()) -> Iterator[Scope]:
    """Open the homes that a command is about; arguments and errors as of `open_stores` and `scope_of`."""
    with open_stores(target, homes) as stores:
        yield scope_of(stores, target.stream, shard)


def scope_of(stores: Sequence[SourceStore], stream: str | None = None, shard: str | None = None) -> Scope:
    """Return what a command is about, by its options.

    Args:
        stores: of all homes of the application.
        stream: one stream, or several with commas between, as in the option streamName; None for all.
        shard: as in `Scope`; with its stream in it, it means that stream.

    Raises:
        ConsoleError: the application does not read such a stream; the error names those that it reads.
    """
    homes = {store.layout.base: streams_of(store) for store in stores}
    known = {name for streams in homes.values() for name in streams}
    streams = None if stream is None else frozenset(name.strip() for name in stream.split(","))
    for name in sorted(streams - known if streams is not None else ()):
        msg = (
            f"application {stores[0].layout.application!r} does not read stream {name!r}; it reads "
            f"{some_of(known) or 'none yet'}. Choose one with --stream"
        )
        raise ConsoleError(msg)
    own = _CREATED.sub("", shard or "").rpartition("/")[0]
    if own in known and (streams is None or own in streams):
        streams = frozenset((own,))
    meant = (store for store in stores if streams is None or streams.intersection(homes[store.layout.base]))
    return Scope(tuple(meant), streams, shard, homes)


def shard_id(label: str, stream: str) -> str:
    """Return the id of a shard of a stream, which may be typed with the stream before it."""
    return label.removeprefix(f"{stream}/")


def _names(store: SourceStore) -> set[str]:
    """Return the names of the shards that have a node in a home; one that cannot be read hides no others."""
    shards = store.open_for_looking(lambda _: None).shards
    lineage = shards.lineage()
    names = {
        *(lineage.shards if lineage else ()),
        *shards.checkpoints(),
        *shards.inflight(),
        *shards.dead_letters(),
    }
    return {name for name in names if name.rpartition("/")[2] != PAST_RETENTION}
