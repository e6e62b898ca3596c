"""`Acks`: acks and fails records from any process, for sinks that confirm later (`ackMode=explicit`)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self, SupportsIndex

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import (
    SourceStore,
    find_applications,
    find_layouts,
    look_at_shards,
    streams_of,
)
from kinesis_trident.checkpoint.zookeeper.client import connect, disconnect
from kinesis_trident.checkpoint.zookeeper.operations import Check
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.common.visible_text import count_noun, shorten
from kinesis_trident.spout.errors import AckError
from kinesis_trident.spout.options.source import zookeeper_options
from kinesis_trident.tracker.failure import failure_of, text_of
from kinesis_trident.tracker.position_keys import Keys, keys_of, merge_keys, pack_in_parts

_LOOKS = 5
"""How often the home of a stream is looked up again for a request, because its streams have changed."""

_MESSAGE_ID = r"^(?P<stream>[^/]+)/(?P<shard>[^/:]+):(?P<sequence>[0-9]{1,129})(?P<sub>:[0-9]{1,9})?$"


class Acks:
    """Acks and fails records of one application by their `messageId`, from any process that reaches its ZooKeeper.

        with Acks("orders-job", {"zookeeper.hosts": "localhost:2181"}) as acks:
            acks.ack(confirmed)
            acks.fail(refused, "the warehouse said no")

    A call is durable when it returns; the query processes the calls between two micro-batches, in order. Pass ids in
    bulk: some ten thousand fit into one node, and each call writes at least one node. Ids that are done already, or
    were never delivered, change nothing; the query's progress counts them. One that no record ever had, below what was
    read, looks like one that is done. Thread-safe.

    Args:
        application: the option `applicationName` of the query.
        options: the options of the source, of which those for ZooKeeper are used; one that is none is refused.

    Raises:
        OptionsError: an unknown option, or `zookeeper.hosts` is missing.
        CheckpointError: ZooKeeper cannot be reached, or refuses the login.
        AckError: no query of this application has read a stream yet.
    """

    def __init__(self, application: str, options: Mapping[str, str]) -> None:
        self._options = zookeeper_options(application, options)
        if not self._options.zookeeper_hosts:
            msg = "Acks needs the option zookeeper.hosts. Set it as in the query"
            raise AckError(msg)
        self._client = connect(self._options.zookeeper)
        self._homes: dict[str, _Home] = {}
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def ack(self, message_ids: Iterable[str], *, attempt: SupportsIndex | None = None) -> int:
        """Mark records as done: they no longer hold the checkpoint back, and are not delivered again.

        A record that waits for a retry is done too; it is not delivered again if the query processes the ack before the
        retry.

        Args:
            message_ids: strings, or an Arrow array of them.
            attempt: the rows' column `attempt`. Records that are by now in another attempt, or wait for it, stay as
                they are: what is said late of an earlier delivery is ignored. None: whatever attempt they are in.

        Returns:
            The number of distinct records.

        Raises:
            AckError: an id is invalid, or its stream or shard is not read by the application; no record was acked,
                but where shards have gone meanwhile: then it says how many were.
            CheckpointError: ZooKeeper does not answer; some records may be acked.
        """
        return self._tell(message_ids, "ack", "", attempt)

    def fail(
        self,
        message_ids: Iterable[str],
        reason: str | BaseException,
        *,
        attempt: SupportsIndex | None = None,
        retry: bool = True,
        after: str | timedelta | None = None,
    ) -> int:
        """Mark records as failed: a later micro-batch delivers them again, or they go to the dead letter.

        Works as `ack` does. Records that are done or failed stay so.

        Args:
            message_ids: as for `ack`.
            reason: a text, or an exception, of which a `PermanentFailure` and a `RetryLater` mean what they do when
                they are raised. At most 256 characters are stored.
            attempt: as for `ack`.
            retry: False where no further delivery can help: they go where `onExhausted` says.
            after: they do not come again before a while, such as `10m`, has passed; the policy's delay may be longer.

        Raises:
            DelayError: `after` is no delay, or is given for records that do not come again. No record was failed.
        """
        failure = failure_of(reason or "failed by Acks.fail", retry=retry, after=after)
        return self._tell(message_ids, "fail", text_of(failure), attempt)

    def reset_timeout(self, message_ids: Iterable[str], *, attempt: SupportsIndex | None = None) -> int:
        """Restart the `messageTimeout` of records, from the moment the query processes this call.

        Works as `ack` does. Records that are done or failed stay so.
        """
        return self._tell(message_ids, "reset", "", attempt)

    def close(self) -> None:
        """End the connection."""
        disconnect(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(
        self,
        message_ids: Iterable[str],
        op: Literal["ack", "fail", "reset"],
        reason: str,
        attempt: SupportsIndex | None,
    ) -> int:
        attempt = _check_attempt(attempt)
        named = dict(_group_by_shard(_array(message_ids)))
        self._check(list(named))
        told = 0
        for (stream, shard), keys in named.items():
            for positions in pack_in_parts(keys):
                node = ExternalNode(op=op, positions=positions, reason=reason, attempt=attempt)
                self._add(stream, shard, node, told)
            told += len(keys)
        return told

    def _add(self, stream: str, shard: str, node: ExternalNode, told: int) -> None:
        """Leave a request in the home in which the stream lives now; `told` records of the call have theirs."""
        for _ in range(_LOOKS):
            try:
                self._homes[stream].add(stream, shard, node)
            except StateMissingError:
                # The stream was put together with others, or created again: its old home takes nothing any more. Or
                # shards have come and gone.
                self._look()
                self._check([(stream, shard)], told)
            else:
                return
        self._homes[stream].add(stream, shard, node)

    def _check(self, named: list[tuple[str, str]], told: int = 0) -> None:
        if not all(self._knows(stream, shard) for stream, shard in named):
            # Shards are split and merged, and an application may begin another stream.
            self._look()
        for stream, shard in named:
            if self._knows(stream, shard):
                continue
            what = f"stream {stream!r}; the application reads {', '.join(sorted(self._homes))}"
            if stream in self._homes:
                what = (
                    f"shard {shard!r}, which the application has not read in stream {stream!r}, or which retention "
                    "has removed"
                )
            others = (
                f"{count_noun(told, 'record')} of other shards {'was' if told == 1 else 'were'}"
                if told
                else "No record was"
            )
            msg = (
                f"application {self._options.application_name!r}: some message ids belong to {what}. "
                f"{others} acked or failed"
            )
            raise AckError(msg)

    def _knows(self, stream: str, shard: str) -> bool:
        home = self._homes.get(stream)
        return home is not None and home.name_of(stream, shard) in home.shards

    def _look(self) -> None:
        """Read the application's streams and shards; for a recreated stream, those of its last run."""
        options = self._options
        session = Session(self._client, options.zookeeper_session_timeout)
        layouts = find_layouts(session, options.zookeeper_root, options.application_name)
        if not layouts:
            known = ", ".join(find_applications(session, options.zookeeper_root)) or "no application"
            msg = (
                f"application {options.application_name!r} does not exist below {options.zookeeper_root} in ZooKeeper "
                f"at {options.zookeeper_hosts}; found: {known}. Check the names, or start the query first"
            )
            raise AckError(msg)
        stores = [SourceStore(self._client, one, options.zookeeper_session_timeout) for one in layouts]
        # Streams that were once read together share a home; of a stream that was created again the newest counts.
        for store in sorted(stores, key=lambda one: (one.layout.several, one.layout.created)):
            home = _Home.of(store)
            self._homes |= dict.fromkeys(home.created, home)


def _check_attempt(attempt: SupportsIndex | None) -> int | None:
    """Return the value of the column `attempt`, also as numpy and pandas give it."""
    if attempt is None:
        return None
    try:
        found = 0 if isinstance(attempt, bool | np.bool_) else operator.index(attempt)
    except TypeError:
        found = 0
    if not 0 < found < 2**31:
        msg = f"attempt={attempt!r} is not an attempt. Pass the value of the rows' column attempt, from 1"
        raise AckError(msg)
    return found


@dataclass(frozen=True, slots=True)
class _Home:
    """The store of some streams (name to creation time), and the names of their shards in it.

    `checks`: that the shards and the streams are still these.
    """

    store: SourceStore
    created: Mapping[str, int]
    shards: frozenset[str]
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, store: SourceStore) -> _Home:
        shards, checks = look_at_shards(store)
        return cls(store, streams_of(store), shards, checks)

    def name_of(self, stream: str, shard: str) -> str:
        """Return a shard's name in the store."""
        return self.store.layout.name_of(ShardKey(stream, self.created[stream], shard))

    def add(self, stream: str, shard: str, node: ExternalNode) -> None:
        """Leave a request for a shard.

        Raises:
            StateMissingError: the stream has left this home.
        """
        self.store.external.add(self.name_of(stream, shard), node, self.checks)


def _array(message_ids: Iterable[str]) -> pa.Array:
    if isinstance(message_ids, str):
        msg = f"expected a list of message ids, got one string. Pass [{message_ids!r}]"
        raise AckError(msg)
    if isinstance(message_ids, pa.ChunkedArray):
        message_ids = message_ids.combine_chunks()
    try:
        return pc.cast(
            message_ids if isinstance(message_ids, pa.Array) else pa.array(message_ids), pa.string()
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeEncodeError) as error:
        msg = f"message ids must be strings, as in the column messageId: {shorten(str(error), 200)}"
        raise AckError(msg) from error


def _group_by_shard(ids: pa.Array) -> Iterator[tuple[tuple[str, str], Keys]]:
    """Yield the distinct records of the ids by stream and shard."""
    parts = pc.extract_regex(ids, _MESSAGE_ID)
    wrong = np.flatnonzero(pc.is_null(parts).to_numpy(zero_copy_only=False))
    if len(wrong):
        others = (
            f", nor {count_noun(len(wrong) - 1, 'is', 'are')} other of {len(ids)}" if len(wrong) > 1 else ""
        )
        first = shorten(repr(ids[int(wrong[0])].as_py()), 200)
        msg = (
            f"{first} is not a message id (stream/shardId:sequence[:sub]){others}. No record "
            "was acked or failed"
        )
        raise AckError(msg)
    if not len(ids):
        return
    streams, shards, sequences, subs = (parts.field(name) for name in ("stream", "shard", "sequence", "sub"))
    texts = sequences.to_numpy(zero_copy_only=False)
    inside = pc.cast(pc.if_else(pc.equal(subs, ""), ":-1", subs), pa.string())
    numbers = pc.cast(pc.utf8_slice_codeunits(inside, 1), pa.int64()).to_numpy(zero_copy_only=False)
    groups = pc.binary_join_element_wise(streams, shards, "/").dictionary_encode()
    for index, name in enumerate(groups.dictionary.to_pylist()):
        mine = np.flatnonzero(groups.indices.to_numpy() == index)
        stream, _, shard = name.partition("/")
        yield (stream, shard), merge_keys([keys_of(texts[mine], numbers[mine])])
