"""The notes of a home: nodes of which there is one, which a run writes as a whole and anyone reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Generic

from kazoo.exceptions import NodeExistsError, NoNodeError
from msgspec.structs import replace

from kinesis_trident.checkpoint.errors import CorruptNodeError, FencedError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import EpochNode, JudgingNode, StartNode, StopNode, StreamsNode
from kinesis_trident.checkpoint.model.pauses import NOTHING_PAUSED, PausesNode
from kinesis_trident.checkpoint.model.run_status import How, RunEnd, RunEndsNode, StatusNode
from kinesis_trident.checkpoint.store.fenced_nodes import (
    RACES,
    FencedNodes,
    NodeT,
    Stored,
    too_many_races,
)
from kinesis_trident.checkpoint.zookeeper.node_watch import NodeWatch
from kinesis_trident.checkpoint.zookeeper.operations import (
    EXISTS,
    MISSING,
    Check,
    Create,
    Delete,
    Found,
    Refused,
    Write,
)

log = logging.getLogger(__name__)

_ENDS = 20


class Note(Generic[NodeT]):
    """One node: its path, and what it holds."""

    def __init__(self, nodes: FencedNodes, path: str, kind: type[NodeT]) -> None:
        self._nodes = nodes
        self._path = path
        self._kind = kind

    def get(self, *, fresh: bool = False) -> NodeT | None:
        """Return the note; None if there is none. `fresh`: includes what any run has written before this call."""
        return self._nodes.get(self._path, self._kind, fresh=fresh)

    def put(self, node: NodeT, epoch: int) -> None:
        """Store the note: the last writer of the newest run wins.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._nodes.update(self._path, self._kind, lambda _: node, epoch)

    def put_once(self, node: NodeT, epoch: int) -> NodeT:
        """Store the note where there is none; return the note that stands there now.

        Raises:
            FencedError: a newer run has taken over.
        """
        done = self._nodes.update(self._path, self._kind, lambda found: found or node, epoch, is_new=True)
        return done.node or node


class JudgingNote(Note[JudgingNode]):
    """The node `judging`: the newest run whose driver judges; its batches are done only with an outcome.

    A plain query publishes nothing, so for it "no outcome" means that everything is done. For a driver that judges, "no
    outcome" means that the outcome was lost, as in a ZooKeeper that was restored from a copy made before it was
    published.
    """

    _declared = 0
    _before: Stored[JudgingNode] | None = None

    def declare(self, epoch: int, readers: Callable[[], Collection[int]] = tuple) -> list[int]:
        """Note that the driver of the run of `epoch` judges its records; sends no request once it is noted.

        Args:
            epoch: of the run.
            readers: gives the earlier runs that have read rows of the current batch.

        Returns:
            Those of them that did not judge: plain queries, whose sinks may have what they read.

        Raises:
            FencedError: a newer run has taken over.
        """
        if self._declared == epoch:
            return []
        before, judged = set(readers()), set[int]()

        def note(node: JudgingNode | None) -> JudgingNode:
            nonlocal judged
            judged = {run for run in before if node is not None and node.judged(run)}
            # The note is written even if it says so already: the run that wrote it may still take it back.
            return JudgingNode(epoch=epoch, earlier=tuple(sorted(judged - {epoch})))

        self._before = self._nodes.update(self._path, JudgingNode, note, epoch).before
        self._declared = epoch
        return sorted(before - judged - {epoch})

    def take_back(self, epoch: int) -> None:
        """Make the note what it was before this process said that the run of `epoch` judges, if it has."""
        if self._declared != epoch:
            return
        self._declared = 0
        before = self._before
        with suppress(Refused, FencedError):
            if before is None:
                self._nodes.commit([Check(self._path, 0), Delete(self._path)], epoch)
            else:
                self._nodes.replace(
                    self._path, before.node, replace(before, version=before.version + 1), epoch
                )

    def forget(self, epoch: int) -> None:
        """Remove the note of an earlier run: a plain query has taken over.

        Raises:
            FencedError: a newer run has taken over.
        """
        try:
            self._nodes.commit([Delete(self._path)], epoch)
        except Refused as refused:
            if refused.kind is not MISSING:
                raise


class StreamsNote(Note[StreamsNode]):
    """The node `streams` of a home of several, and a node for each stream whose LATEST was resolved to a time."""

    def check(self) -> Check | None:
        """Return the check that the streams are those that are read from now on; None if the node is not there."""
        found = self._nodes.session.stats([self._path])[0]
        return None if found is None else Check(self._path, found.version)

    def start(self, stream: str, created: int) -> StartNode | None:
        """Return the time to which a stream's LATEST was resolved; None before it was."""
        return self._start_of(stream, created).get()

    def put_start(self, stream: str, created: int, node: StartNode, epoch: int) -> StartNode:
        """Store the time to which a stream's LATEST is resolved, once; later callers get the first answer.

        Raises:
            FencedError: a newer run has taken over.
        """
        return self._start_of(stream, created).put_once(node, epoch)

    def _start_of(self, stream: str, created: int) -> Note[StartNode]:
        return Note(self._nodes, self._nodes.layout.start_of(stream, created), StartNode)


class PausesNote(Note[PausesNode]):
    """The node `paused`, which people write whether a query runs or not."""

    def change(self, change: Callable[[PausesNode], PausesNode]) -> None:
        """Store what `change` makes of the pauses, as often as others are quicker; it may be done twice.

        Raises:
            StateMissingError: the home is not there, or its stream is read together with others by now.
        """
        nodes, place = self._nodes, self._nodes.layout.external
        for _ in range(RACES):
            found = nodes.fetch(self._path, PausesNode, fresh=True)
            before = found.node if found is not None else NOTHING_PAUSED
            after = change(before)
            if after == before:
                return
            data = encode(after)
            # It is never deleted: one that is made again would have the version of the one before.
            write = (
                Create(self._path, data) if found is None else Write(self._path, data, version=found.version)
            )
            try:
                # An adoption removes that folder before it takes the pauses along.
                nodes.session.commit([Check(place), write])
            except Refused as refused:
                if refused.op.path == place:
                    raise nodes.closed_error() from None
                continue
            return
        raise too_many_races(self._path)

    def adopt(self, old: PausesNote, name_of: Callable[[str], str], epoch: int) -> None:
        """Add the pauses of another home, which is closed to what others write; `name_of`: of its shards here.

        Raises:
            FencedError: a newer run has taken over.
        """
        theirs = old.get(fresh=True)
        if theirs is None or not theirs.pauses:
            return

        def add(ours: PausesNode | None) -> PausesNode:
            found = ours or NOTHING_PAUSED
            for pause in theirs.pauses:
                found = found.add(replace(pause, shards=name_of(pause.shards)))
            return found

        self._nodes.update(self._path, PausesNode, add, epoch)

    def watch(self, callback: Callable[[], object]) -> None:
        """Call `callback` now and at each change; it must be quick."""
        NodeWatch(self._nodes.session, self._path, lambda _: callback())


class StopNote(Note[StopNode]):
    """The node `stop`, ephemeral: a process asks that a running query ends after the current batch; the run answers."""

    def ask(self, epoch: int, *, drain: bool = False) -> None:
        """Ask the run of `epoch` to plan nothing more, at once or once it has drained.

        The request ends with this process's session.
        """
        request = Create(self._path, encode(StopNode(epoch=epoch, drain=drain)), ephemeral=True)
        try:
            self._nodes.session.commit([request])
        except Refused as refused:
            if refused.kind is not EXISTS:
                raise
            self._nodes.session.commit([Delete(self._path), request])

    def answer(self, settled: int, epoch: int, left: str = "") -> None:
        """Answer that this run plans nothing more, and the settled txid. Does nothing if the request is gone.

        `left`: the shards that a drain has not read.
        """
        answer = StopNode(epoch=epoch, settled=settled, left=left)
        try:
            self._nodes.commit([Write(self._path, encode(answer))], epoch)
        except Refused as refused:
            if refused.kind is not MISSING:
                raise

    def watch(self, callback: Callable[[StopNode | None], object]) -> None:
        """Call `callback` with the current request (None for none) and at each change; it must be quick."""

        def tell(found: Found | None) -> None:
            try:
                request = decode(self._path, found.data, StopNode) if found and found.data else None
            except CorruptNodeError as error:
                # Any process may make a request.
                log.warning("an unreadable request to stop is ignored: %s", error)
                request = None
            callback(request)

        NodeWatch(self._nodes.session, self._path, tell)


class StatusNote(Note[StatusNode]):
    """The node `status`: what the newest run sees, written without waiting."""

    _exists = True
    _pending: Any = None

    def tell(self, node: StatusNode) -> None:
        """Write the node if its epoch is the newest; waits for nothing and raises nothing.

        While ZooKeeper does not answer, nothing is sent: the node is information, and the next one replaces it.
        """
        client = self._nodes.session.client
        if (self._pending is not None and not self._pending.ready()) or not client.connected:
            return
        self.learn()
        transaction = client.transaction()
        transaction.check(self._nodes.layout.epoch, node.epoch)
        write = transaction.set_data if self._exists else transaction.create
        write(self._path, encode(node))
        self._pending = transaction.commit_async()

    def learn(self) -> bool:
        """Take in the answer to the last write; return True if it was refused, because the node exists or does not."""
        if self._pending is None or not self._pending.ready():
            return False
        pending, self._pending = self._pending, None
        refused = pending.successful() and any(
            isinstance(result, NoNodeError | NodeExistsError) for result in pending.get()
        )
        self._exists = self._exists is not refused
        return refused


class EndsNote(Note[RunEndsNode]):
    """The node `ends`: how the last runs ended."""

    def note(self, epoch: int, how: How, at: int, why: str = "") -> None:
        """Note how the run of `epoch` has ended; the first note of a run stays, because what follows comes of it.

        Raises:
            FencedError: a newer run has taken over.
        """

        def add(node: RunEndsNode | None) -> RunEndsNode | None:
            run = self._nodes.get(self._nodes.layout.epoch, EpochNode)
            ends = node.ends if node is not None else ()
            if run is None or any(end.epoch == epoch for end in ends):
                self._nodes.commit((), epoch)
                return node
            end = RunEnd(epoch, run.host, run.pid, run.since, at, how, why[:1000])
            return RunEndsNode(ends=(*ends, end)[-_ENDS:])

        self._nodes.update(self._path, RunEndsNode, add, epoch)

    def forget(self, epoch: int) -> None:
        """Remove the note of the run of `epoch`, which goes on.

        Raises:
            FencedError: a newer run has taken over.
        """

        def remove(node: RunEndsNode | None) -> RunEndsNode | None:
            left = tuple(end for end in node.ends if end.epoch != epoch) if node is not None else ()
            return node if node is None or left == node.ends else RunEndsNode(ends=left)

        self._nodes.update(self._path, RunEndsNode, remove, epoch)

    def runs(self) -> tuple[RunEnd, ...]:
        """Return how the last runs ended, the newest last."""
        node = self.get()
        return node.ends if node is not None else ()
