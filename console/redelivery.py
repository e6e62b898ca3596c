"""Requests about failed records that people make, and their notes: deliver again, withdraw that, dead-letter now."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from kinesis_trident.checkpoint.errors import StateMissingError
from kinesis_trident.checkpoint.model.codec import name_in_errors
from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.checkpoint.model.message_id import MessageId, source_of
from kinesis_trident.checkpoint.model.nodes import DeadLettersNode, ExternalNode, InflightNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, look_at_shards, streams_of
from kinesis_trident.checkpoint.zookeeper.operations import Check
from kinesis_trident.common.redaction import redact
from kinesis_trident.common.stream_names import stream_of
from kinesis_trident.common.visible_text import count_noun, make_visible
from kinesis_trident.console.changes import note_request
from kinesis_trident.console.dead_letter_replay import KEPT_NOWHERE, folder_of, has_letters, message_id_of
from kinesis_trident.console.target import ConsoleError, command_for
from kinesis_trident.console.text import now_ms, some_of
from kinesis_trident.tracker.failure import OF_ANOTHER_STREAM
from kinesis_trident.tracker.records import RecordPosition, Run

_NAMED = 3
# A node of this many positions is about 30 KB.
_RECORDS_A_NODE = 500


@dataclass(frozen=True, slots=True)
class Redelivery:
    """A request that the query delivers records of a shard again.

    Attributes:
        store: of the shard's home.
        shard: its name there.
        ids: the records, as they were chosen.
        records: their positions; one of a run that waits brings all of it.
        count: the number of records that come.
        waiting: those of the positions that wait for a retry; if they are done by the time of the answer, they stay so.
        again: also those that were replayed before and are done since.
        checks: that the shards and the streams of the home are those that were looked at.
    """

    store: SourceStore
    shard: str
    ids: tuple[MessageId, ...]
    records: tuple[str, ...]
    count: int
    waiting: Collection[str] = ()
    again: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def nodes(self) -> list[ExternalNode]:
        """The nodes to write: every record once, in order, a bounded number in a node."""
        return [
            ExternalNode(op="replay", records=part, again=self.again, attempt=attempt)
            for attempt in (None, 0)
            for part in _parts_of(
                tuple(one for one in self.records if (one in self.waiting) is (attempt is not None))
            )
        ]


def deliver_again(requests: Sequence[Redelivery], *, what: str) -> int:
    """Ask the query to deliver records again with a new count of attempts, and note that in each home.

    The next settled batch of the query includes them.

    Returns:
        The number of records.

    Raises:
        CheckpointError: ZooKeeper does not answer, or what was looked at has changed.
    """
    with _noted(what) as accept:
        for at, request in enumerate(requests):
            nodes = request.nodes
            source = request.store.layout.key_of(request.shard).source
            for number, node in enumerate(nodes):
                try:
                    request.store.external.add(request.shard, node, request.checks)
                except StateMissingError as error:
                    if not at and not number:
                        raise
                    msg = f"a part of the records is asked for by now, and is left out when you ask again: {error}"
                    raise StateMissingError(msg) from None
                whole = len(nodes) == 1
                accept(request.store, request.ids if whole else _ids_of(source, node))
    return sum(request.count for request in requests)


def dead_letter_now(store: SourceStore, texts: Collection[str]) -> int:
    """Ask the query to dead-letter runs that wait for a retry, named as by `waiting_ids`, and note that.

    The query does it with its next micro-batch, or once it is started.

    Returns:
        The number of records.

    Raises:
        ConsoleError: none of the runs waits here, or one is being delivered and may be acked yet.
        CheckpointError: ZooKeeper does not answer, or what was looked at has changed.
    """
    checks = look_at_shards(store)[1]
    asked: dict[str, tuple[Run, ...]] = {}
    batch, settled, _ = store.batches.newest_unsettled()
    is_open = batch is not None and (settled is None or settled.txid < batch.plan.txid)
    retries = batch.plan.retries if batch is not None and is_open else {}
    for shard, held in store.shards.inflight().items():
        source = store.layout.key_of(shard).source
        lasts = {one.last for one in map(message_id_of, texts) if one.source == source}
        chosen = tuple(run for run in held.waiting if run.last_position in lasts)
        # Once its batch is settled it waits for its ack, where no such request finds it.
        coming = {run.last for run in retries.get(shard, ())} if held.turns else set()
        for run in chosen:
            if run.last in coming:
                msg = (
                    f"{MessageId.of_run(source, run)} is being delivered just now, and may be acked. Ask again if it "
                    "fails and waits again"
                )
                raise ConsoleError(msg)
        if chosen:
            asked[shard] = chosen
    if not asked:
        msg = f"{', '.join(sorted(texts)[:3])}: no such record waits for a retry any more. Look at the list again"
        raise ConsoleError(msg)
    with _noted("dead-letter now") as accept:
        for shard, runs in asked.items():
            node = ExternalNode(op="bury", records=tuple(run.last for run in runs))
            store.external.add(shard, node, checks)
            source = store.layout.key_of(shard).source
            accept(store, [MessageId.of_run(source, run) for run in runs])
    return sum(run.count for runs in asked.values() for run in runs)


@contextmanager
def _noted(what: str) -> Iterator[Callable[[SourceStore, Iterable[MessageId]], None]]:
    """Give a function that is told what a home has accepted, and note that in each, also where a later part fails."""
    accepted: dict[str, tuple[SourceStore, list[str]]] = {}

    def accept(store: SourceStore, ids: Iterable[MessageId]) -> None:
        accepted.setdefault(store.layout.base, (store, []))[1].extend(map(str, ids))

    try:
        yield accept
    finally:
        for store, ids in accepted.values():
            note_request(store, f"{what}: {some_of(ids, _NAMED)}")


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """Dead letters that were read where they are: the place, and when each record arrived by its message id."""

    place: str
    arrived: Mapping[str, int]


def _refuse_gone(
    store: SourceStore,
    letters: DeadLettersNode | None,
    ids: Collection[MessageId],
    found: FoundLetters | None,
) -> None:
    """Refuse dead letters that nothing can deliver: of another stream, or gone from it, and the query has no payload.

    Raises:
        ConsoleError: there are some; it says how many.
    """
    foreign = [
        record.message_id
        for record in (letters.last if letters is not None else ())
        if record.reason == str(OF_ANOTHER_STREAM)
        and any(one and one.takes(asked) for one in [MessageId.find(record.message_id)] for asked in ids)
    ]
    if foreign:
        msg = (
            f"{some_of(foreign, _NAMED)} is of another stream of the name, so it cannot be delivered again. "
            "Put its data into the stream anew"
        )
        raise ConsoleError(make_visible(msg))
    target = letters.target if letters is not None else ""
    has_folder = "/" in target and stream_of(target) is None
    if _is_same_place(found.place, target) if found is not None else has_folder:
        # The query takes from there what the stream no longer has.
        return
    status = store.status.get()
    kept = status.retention if status is not None else {}
    now = now_ms()

    def is_gone(one: MessageId, time: int) -> bool:
        return now - time > kept.get(one.stream, math.inf) * 3_600_000

    if found is not None:
        gone = [(str(one), 1) for one in ids if is_gone(one, found.arrived.get(str(one)) or now)]
    else:
        gone = [
            (record.message_id, record.count)
            for record in (letters.last if letters is not None else ())
            for one in [MessageId.find(record.message_id)]
            if one is not None and is_gone(one, record.time) and any(one.takes(asked) for asked in ids)
        ]
    if not gone:
        return
    count = sum(number for _, number in gone)
    has = "has" if count == 1 else "have"
    said = f"{count} of these records {has} left the stream: {some_of([one for one, _ in gone], _NAMED)}"
    if letters is None or not has_letters(letters):
        said += (
            ". Nothing keeps them: put them into the stream anew, and set deadLetter to a folder or a stream, from "
            "which the query delivers what the stream no longer has"
        )
    else:
        named = map(str, ids if len(ids) <= _NAMED else ())
        line = command_for(store, "dead-letters", "replay", *named, options=["--from", folder_of(letters)])
        said += f". The query delivers those that still have a letter in {redact(target)}: {line}"
    raise ConsoleError(make_visible(said))


def _is_same_place(place: str, other: str) -> bool:
    """Return whether two names are of the same folder or stream, as far as the names tell."""
    # Only here, because it loads pyarrow.
    from kinesis_trident.common.folder import absolute_target

    first, second = (absolute_target(one).removeprefix("file://").rstrip("/") for one in (place, other))
    return bool(place and other) and first == second


class _Runs:
    """The runs of a shard that wait or are dead, for lookups."""

    def __init__(self, source: str, held: InflightNode | None) -> None:
        runs = sorted((*held.waiting, *held.dead), key=lambda run: run.last_position) if held else []
        self._waiting = {run.last for run in held.waiting} if held else set[str]()
        self._runs = [(MessageId.of_run(source, run), run.count) for run in runs]
        self._lasts = [name.last for name, _ in self._runs]

    def within(self, one: MessageId) -> list[tuple[MessageId, int]]:
        """Return the runs that a name means, with their numbers of records: that of a record, or those of a run."""
        if one.is_one:
            at = bisect_left(self._lasts, one.last)
            return [run for run in self._runs[at : at + 1] if run[0].covers(one.last)]
        begin = (
            bisect_left(self._lasts, one.first)
            if one.first
            else (bisect_right(self._lasts, one.prev) if one.prev else 0)
        )
        return self._runs[begin : bisect_right(self._lasts, one.last)]

    def find_waiting(self, positions: Iterable[RecordPosition]) -> frozenset[str]:
        """Return those of the positions whose runs wait for a retry."""
        return frozenset(
            str(at)
            for at in positions
            for run, _ in self.within(MessageId.of_record("", at))
            if str(run.last) in self._waiting
        )

    def count(self, positions: Iterable[RecordPosition]) -> int:
        """Return how many records come if these are asked for: one that is in a run brings all of it."""
        runs, alone = dict[RecordPosition, int](), 0
        for position in positions:
            found = self.within(MessageId.of_record("", position))
            runs |= {run.last: count for run, count in found}
            alone += not found
        return alone + sum(runs.values())


class _HomeLook:
    """What is known of the shards of a home: one look for all of them."""

    def __init__(self, store: SourceStore) -> None:
        self.store = store
        self.known, self.checks = look_at_shards(store)
        self.created = streams_of(store)
        self.letters, self.inflight = store.shards.dead_letters(), store.shards.inflight()
        self.asked: dict[str, set[str]] = {}
        for shard, _, node, _ in _waiting_requests(store):
            self.asked.setdefault(shard, set()).update(node.records)

    def name_of(self, source: str) -> str:
        """Return the name of a shard.

        Raises:
            ConsoleError: there is no such shard.
        """
        stream, _, shard = source.partition("/")
        name = self.store.layout.name_of(ShardKey(stream, self.created.get(stream, 0), shard))
        if name not in self.known:
            there = [key.shard for key in map(self.store.layout.key_of, self.known) if key.stream == stream]
            msg = f"stream {stream!r} has no shard {shard}; it has {some_of(there)}. Check the message ids"
            raise ConsoleError(msg)
        return name


def find_requests(
    stores: Sequence[SourceStore],
    ids: Iterable[MessageId],
    *,
    found: FoundLetters | None = None,
    again: bool = False,
) -> list[Redelivery]:
    """Return the requests for records, without what is asked for already.

    `found`: the records are known to be these dead letters. `again`: also those that were replayed before and are done
    since.

    Raises:
        ConsoleError: a message id is of a stream or shard that the application does not know, or of a record that
            is neither a dead letter nor waits, or that nothing can deliver; or all of them are asked for already.
        CheckpointError: ZooKeeper does not answer.
    """
    streams = {stream: store for store in stores for stream in streams_of(store)}
    sources: dict[str, dict[MessageId, None]] = {}
    for one in ids:
        sources.setdefault(one.source, {})[one] = None
        if one.stream not in streams:
            msg = (
                f"application {stores[0].layout.application!r} does not read stream {one.stream!r} of these records; "
                f"it reads {some_of(streams)}. Check the message ids"
            )
            raise ConsoleError(msg)
    looks: dict[str, _HomeLook] = {}
    made: list[Redelivery] = []
    for source, some in sorted(sources.items()):
        store = streams[source.partition("/")[0]]
        home = looks.get(store.layout.base) or looks.setdefault(store.layout.base, _HomeLook(store))
        shard = home.name_of(source)
        runs = _Runs(source, home.inflight.get(shard))
        letters = home.letters.get(shard)
        listed = {record.message_id for record in letters.last if record.count > 1} if letters else set()
        _refuse_gone(store, letters, some, found)
        positions: set[RecordPosition] = set()
        for one in some:
            inside = runs.within(one)
            # A few records of a run of dead letters may wait again.
            whole = str(one) not in listed or any(run == one for run, _ in inside)
            if found is None and not (inside and whole):
                _refuse_stranger(store, one, letters)
            # A record is asked for by its own name: its run may be another one by the time of the answer.
            positions.update([one.last] if one.is_one else [run.last for run, _ in inside])
        left = [at for at in sorted(positions) if str(at) not in home.asked.get(shard, ())]
        made.append(
            Redelivery(
                store,
                shard,
                tuple(some),
                tuple(map(str, left)),
                runs.count(left),
                runs.find_waiting(left),
                again,
                home.checks,
            )
        )
    if made and not any(one.records for one in made):
        chosen = [str(one) for request in made for one in request.ids]
        names, options = chosen, list[str]()
        if len(chosen) > _NAMED:
            whose = {source_of(one).partition("/")[0] for one in chosen}
            names, options = [], ["--all", "--stream", ",".join(sorted(whose))]
        line = command_for(stores[0], "dead-letters", "cancel", *names, options=options)
        msg = (
            f"{count_noun(len(chosen), 'message id')} asked for already: the query takes it in with its next batch, "
            f"or once it is started. Until then {line} withdraws it"
        )
        raise ConsoleError(msg)
    return [one for one in made if one.records]


def cancel_replays(
    store: SourceStore, shards: Callable[[str], bool], named: Collection[MessageId] | None, what: str
) -> tuple[int, int, int]:
    """Take back what somebody has asked for, and note that.

    Args:
        store: of the home.
        shards: tells by its name whether a shard is meant.
        named: the records that are meant; None for all.
        what: the note.

    Returns:
        The numbers of records: as `withdraw`, and as `take_back`.
    """

    def is_meant(shard: str, one: MessageId) -> bool:
        return shards(shard) and (named is None or any(name.takes(one) for name in named))

    count, late = withdraw(store, is_meant)
    # At once: ZooKeeper may be gone before the second step.
    if count:
        note_request(store, what)
    taken_back = take_back(store, is_meant)
    if taken_back and not count:
        note_request(store, what)
    return count, late, taken_back


def withdraw(store: SourceStore, is_meant: Callable[[str, MessageId], bool]) -> tuple[int, int]:
    """Withdraw requests to deliver records again.

    Returns:
        The number of records that no run had taken in yet, and of those for which a run was quicker.
    """
    withdrawn = late = 0
    inflight = store.shards.inflight()
    for shard, name, node, source in _waiting_requests(store):
        positions = [RecordPosition.parse(record) for record in node.records]
        gone = {at for at in positions if is_meant(shard, MessageId.of_record(source, at))}
        if not gone:
            continue
        count = _Runs(source, inflight.get(shard)).count(gone)
        left = tuple(str(at) for at in positions if at not in gone)
        if store.external.withdraw(
            shard, name, msgspec.structs.replace(node, records=left) if left else None
        ):
            withdrawn += count
        else:
            late += count
    return withdrawn, late


def take_back(store: SourceStore, is_meant: Callable[[str, MessageId], bool]) -> int:
    """Ask the query not to deliver records again after all that it was asked for and has taken in.

    Returns:
        The number of records. One that is being delivered by then comes all the same.
    """
    count = 0
    for shard, node in store.shards.dead_letters().items():
        if not node.replays:
            continue
        # Only here, because it loads numpy.
        from kinesis_trident.checkpoint.model.replays import asked_of

        source = store.layout.key_of(shard).source
        with name_in_errors(store.layout.deadletters_of(shard)):
            asked = asked_of(node).positions
        records = tuple(str(at) for at in asked if is_meant(shard, MessageId.of_record(source, at)))
        for part in _parts_of(records):
            store.external.add(shard, ExternalNode(op="cancel", records=part))
        count += len(records)
    return count


def _ids_of(source: str, node: ExternalNode) -> list[MessageId]:
    return [MessageId.of_record(source, RecordPosition.parse(record)) for record in node.records]


def _parts_of(records: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield records in as many parts as they take nodes."""
    for at in range(0, len(records), _RECORDS_A_NODE):
        yield records[at : at + _RECORDS_A_NODE]


def _waiting_requests(store: SourceStore) -> Iterator[tuple[str, str, ExternalNode, str]]:
    """Yield the requests for replays that no run has taken in: shard, name, node, the beginning of message ids."""
    for shard, found in store.external.read().asked.items():
        for name, node in found.items():
            if node.op == "replay":
                yield shard, name, node, store.layout.key_of(shard).source


def _refuse_stranger(store: SourceStore, one: MessageId, letters: DeadLettersNode | None) -> None:
    """Refuse a record that did not fail: a typing error would deliver a record again that is done.

    Raises:
        ConsoleError: it is neither a dead letter; or a run of them, which only its folder names one by one.
    """
    found = [MessageId.find(record.message_id) for record in letters.last] if letters else []
    listed = [known for known in found if known is not None]
    if one.is_one and any(known.covers(one.last) for known in listed):
        return
    is_run = not one.is_one and any(one.takes(known) for known in listed)
    if letters is not None and (is_run or sum(record.count for record in letters.last) < letters.count):
        why = (
            "stands for several records, which ZooKeeper does not name one by one"
            if is_run
            else "is not among the last dead letters, which are all that ZooKeeper lists"
        )
        way = command_for(store, "dead-letters", "replay", str(one), options=["--from", folder_of(letters)])
        how = f"Take it from its dead-letter folder: {way}" if has_letters(letters) else KEPT_NOWHERE
        msg = f"{one} {why}. {how}"
        raise ConsoleError(msg)
    msg = f"{one}: no such dead letter, and no such record waits. {command_for(store, 'dead-letters')} lists them"
    raise ConsoleError(msg)
