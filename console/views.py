"""The views: makes plain rows for each table from the nodes. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from operator import itemgetter
from typing import Any, Generic, TypeVar, overload

import msgspec

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.facts import ShardFacts
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, DeadLettersNode, Pin
from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.checkpoint.model.standing import explain_blocked
from kinesis_trident.common.times import iso_time
from kinesis_trident.console.dead_letter_replay import replay_of
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.tracker.records import PendingRun, Run

Row = dict[str, Any]
T = TypeVar("T")

_CHECKPOINTS = (
    *("shard", "state", "checkpoint", "sub", "position", "txid", "lag_ms"),
    *("inflight", "retrying", "owner", "standing", "blocked"),
)

_IF_ANY = {"sub", "standing", "blocked"}
"""Columns that are shown only if a shard has a value in them: the table is wide enough without them."""


_LAG = ("lag_ms", "seen_at", "retention_left_ms")


class LazyRows(Sequence[Row], Generic[T]):
    """Rows of which each is made when it is asked for: very many are never in memory together."""

    def __init__(self, facts: Sequence[T], make: Callable[[T], Row]) -> None:
        self._facts, self._make = facts, make

    def __len__(self) -> int:
        return len(self._facts)

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> LazyRows[T]: ...

    def __getitem__(self, at: int | slice) -> Row | LazyRows[T]:
        return LazyRows(self._facts[at], self._make) if isinstance(at, slice) else self._make(self._facts[at])


@dataclass(frozen=True, slots=True)
class View:
    """A table before it is drawn: rows of JSON values with the same keys, a title and a note.

    `problems` names the nodes that cannot be read, and so are in no row; `facts` are of the application, for JSON.

    A key that ends in `_ms` holds milliseconds, `_at` holds epoch milliseconds.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    problems: tuple[str, ...] = ()
    facts: Row = field(default_factory=dict)


def checkpoints(snapshot: Snapshot, now: int) -> View:
    """Show per shard how far all records are done, where reading continues, and the records between."""
    owner, facts = snapshot.owner, HomeFacts(snapshot, now)
    rows, why = [], explain_blocked(snapshot.inflight)
    for shard, one in facts.shards.items():
        node, lineage = snapshot.checkpoints.get(shard), snapshot.shards.get(shard)
        rows.append(
            {
                "shard": snapshot.label_of(shard),
                "state": lineage.state if lineage else None,
                "checkpoint": node.checkpoint if node else None,
                "sub": node.sub if node and node.sub >= 0 else None,
                "position": node.position if node else lineage.start if lineage else None,
                "txid": node.txid if node else None,
                **_pick(one, *_LAG),
                "inflight": facts.inflight(shard),
                **_pick(one, "retrying", "dead_lettered"),
                "connected": owner is not None,
                "owner": f"{owner.host}:{owner.pid}" if owner else None,
                **_pick(one, "standing"),
                "blocked": why.get(shard, ""),
            }
        )
    columns = tuple(name for name in _CHECKPOINTS if name not in _IF_ANY or any(map(itemgetter(name), rows)))
    numbers = msgspec.structs.asdict(facts.figures)
    return View(
        _title("checkpoints", snapshot), _progress(snapshot), columns, tuple(rows), snapshot.problems, numbers
    )


def inflight(snapshot: Snapshot, _now: int, *, failed: bool = True) -> View:
    """Show records read and not done: in the current batch, not acked yet, failed, or to be dead-lettered."""
    facts: list[tuple[str, str, Run | PendingRun | Pin]] = []
    for shard in snapshot.shard_ids:
        pin, held = snapshot.pins.get(shard), snapshot.inflight.get(shard)
        if held and failed:
            facts += [("waiting", shard, run) for run in held.waiting]
            facts += [("dead", shard, run) for run in held.dead]
        if held:
            facts += [("not acked", shard, run) for run in held.pending]
        if pin is not None and pin.fresh:
            facts.append((f"in txid {pin.txid}", shard, pin))
    rows = LazyRows(facts, lambda fact: _inflight_row(snapshot, *fact))
    columns = ("shard", "state", "first", "last", "count", "attempts", "due_at", "reason")
    return View(_title("in flight", snapshot), _progress(snapshot), columns, rows, snapshot.problems)


def _pick(facts: ShardFacts, *keys: str) -> Row:
    """Return some figures of a shard by their names."""
    return {key: getattr(facts.figures, key) for key in keys}


def retry_reasons(snapshot: Snapshot, now: int) -> View:
    """Show the reasons for which failed records come back, the most frequent first."""
    groups: dict[str, list[tuple[str, Run]]] = {}
    for shard, held in snapshot.inflight.items():
        for run in held.waiting:
            groups.setdefault(_reason(run), []).append((shard, run))
    rows: list[Row] = []
    for reason, found in groups.items():
        # Of those that are due at once it is the first of its shard: a node has its runs in shard order.
        shard, first = min(found, key=lambda pair: (pair[1].due, pair[0]))
        rows.append(
            {
                "reason": reason,
                "count": sum(run.count for _, run in found),
                "shards": len({shard for shard, _ in found}),
                "attempts": max(run.attempt for _, run in found),
                "due_at": first.due,
                "due_in_ms": max(first.due - now, 0),
                "message_id": _message_id(snapshot, shard, first),
            }
        )
    rows.sort(key=lambda row: (-row["count"], row["reason"]))
    columns = ("count", "attempts", "due_in_ms", "message_id", "reason")
    return View(_title("retries", snapshot), _progress(snapshot), columns, tuple(rows), snapshot.problems)


def retries(snapshot: Snapshot, now: int, most: int | None = None) -> View:
    """Show failed records that come back, the next due first; with `most`, so many groups of neighbours."""
    waiting = [
        (run.due, shard, at, run)
        for shard, held in snapshot.inflight.items()
        for at, run in enumerate(held.waiting)
    ]
    waiting = sorted(waiting) if most is None else nsmallest(most, waiting)

    def row(fact: tuple[int, str, int, Run]) -> Row:
        _, shard, _, run = fact
        return {
            "message_id": _message_id(snapshot, shard, run),
            "count": run.count,
            "attempts": run.attempt,
            "due_at": run.due,
            "due_in_ms": max(run.due - now, 0),
            "reason": _reason(run),
            **({"keys": " ".join(run.keys)} if has_keys else {}),
        }

    has_keys = any(run.keys for *_, run in waiting)
    columns = ("message_id", "count", "attempts", "due_in_ms", "reason", *(("keys",) if has_keys else ()))
    rows = LazyRows(waiting, row)
    return View(_title("retries", snapshot), _progress(snapshot), columns, rows, snapshot.problems)


def dead_letters(snapshot: Snapshot, _now: int) -> View:
    """Show the last dead letters of each shard, the newest first."""
    rows: list[Row] = [
        {
            "message_id": record.message_id,
            "count": record.count,
            "attempts": record.attempts,
            "txid": record.txid,
            "time_at": record.time,
            "reason": record.reason,
            **_replayed_row(node, record),
        }
        for node in snapshot.dead_letters.values()
        for record in node.last
    ]
    rows.sort(key=lambda row: (-row["time_at"], row["message_id"]))
    total = sum(node.count for node in snapshot.dead_letters.values())
    # Without a dead letter the node names the action taken instead.
    targets = sorted({node.target for node in snapshot.dead_letters.values() if "/" in node.target})
    listed = sum(row["count"] for row in rows)
    note = f"{total} in all" if listed >= total else f"{total} in all, the last {listed} are listed here"
    if targets:
        note += f"; the records are in {', '.join(targets)}"
    replayed = ("replayed",) if any(row["replayed"] for row in rows) else ()
    columns = ("message_id", "count", "attempts", "txid", "time_at", "reason", *replayed)
    return View(_title("dead letters", snapshot), note, columns, tuple(rows), snapshot.problems)


def _replayed_row(node: DeadLettersNode, record: DeadLetterRecord) -> Row:
    try:
        found = replay_of(node, record)
    except CorruptNodeError as error:
        return {"replayed": str(error), "replayed_at": None, "replayed_txid": None}
    if found is None:
        return {"replayed": "", "replayed_at": None, "replayed_txid": None}
    said = {
        "": "in flight",
        "done": f"done in txid {found.txid}",
        "failed": f"failed again in txid {found.txid}",
    }
    return {
        "replayed": said[found.outcome],
        "replayed_at": found.time,
        "replayed_txid": found.txid if found.outcome else None,
    }


def shards(snapshot: Snapshot, now: int) -> View:
    """Show the lineage: the parents of each shard, and how far it is read."""
    facts = HomeFacts(snapshot, now).shards
    rows = []
    for shard, lineage in sorted(snapshot.shards.items()):
        node = snapshot.checkpoints.get(shard)
        rows.append(
            {
                "shard": snapshot.label_of(shard),
                "state": lineage.state,
                "parents": list(map(snapshot.label_of, lineage.parents)),
                "start": lineage.start,
                "position": node.position if node else None,
                **_pick(facts[shard], *_LAG),
            }
        )
    columns = ("shard", "state", "parents", "start", "position", "lag_ms")
    return View(_title("shards", snapshot), _progress(snapshot), columns, tuple(rows), snapshot.problems)


VIEWS: dict[str, Callable[[Snapshot, int], View]] = {
    "checkpoints": checkpoints,
    "dead-letters": dead_letters,
    "inflight": inflight,
    "retries": retries,
    "retry-reasons": retry_reasons,
    "shards": shards,
}


def _title(what: str, snapshot: Snapshot) -> str:
    several = "s" if len(snapshot.streams) > 1 else ""
    return f"{what} of {snapshot.layout.application}, stream{several} {', '.join(snapshot.streams)}"


def _progress(snapshot: Snapshot) -> str:
    def parts() -> Iterator[str]:
        yield f"settled: txid {snapshot.settled.txid}" if snapshot.settled else "nothing settled yet"
        if snapshot.batch_state:
            yield snapshot.batch_state
        if snapshot.run is None:
            yield "never started"
        elif snapshot.owner is None:
            run = snapshot.run
            yield f"no run is connected, the last was {run_name(run.host, run.pid, snapshot.epoch)}"
        else:
            owner = snapshot.owner
            yield f"run: {run_name(owner.host, owner.pid, owner.epoch)}, since {iso_time(owner.since)}"

    return "; ".join(parts())


def _inflight_row(snapshot: Snapshot, state: str, shard: str, fact: Run | PendingRun | Pin) -> Row:
    due, reason = None, ""
    match fact:
        case Pin():
            first = fact.start.replace("AFTER_SEQUENCE_NUMBER", "after").replace("AT_SEQUENCE_NUMBER ", "")
            last, count, attempts = fact.last, fact.fresh, 1
        case PendingRun():
            # Only the batch's pin holds the positions of what is not acked; due is the timeout.
            first, last = f"row {fact.open[0]} of txid {fact.txid}", f"row {fact.open[-1] - 1}"
            count, attempts, due, reason = fact.count, fact.attempt, fact.due, _reason(fact)
        case Run():
            first, last = MessageId.of_run("", fact).begin, fact.last
            count, attempts, reason = fact.count, fact.attempt, _reason(fact)
            due = fact.due if state == "waiting" else None
    return {
        "shard": snapshot.label_of(shard),
        "state": state,
        "first": first,
        "last": last,
        "count": count,
        "attempts": attempts,
        "due_at": due,
        "reason": reason,
    }


def _reason(run: Run | PendingRun) -> str:
    return run.failures[-1].reason if run.failures else ""


def _message_id(snapshot: Snapshot, shard: str, run: Run) -> str:
    return str(MessageId.of_run(snapshot.layout.key_of(shard).source, run))
