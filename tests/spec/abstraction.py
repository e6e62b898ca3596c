"""From the real nodes and offsets to what the specification knows of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from model.world import World
from model.zookeeper import Nodes

from kinesis_trident.checkpoint.model import nodes as real
from kinesis_trident.checkpoint.model.codec import decode
from kinesis_trident.spout.planner.offsets import plan_from_offset
from kinesis_trident.spout.positions import parse_position
from kinesis_trident.tracker.records import RecordPosition
from spec.seen import SeenLog
from spec.values import Batch, Log, Mark, Outcome, Past, Pin, Plan, Shard, Waiting, Zk

__all__ = ["UNKNOWN", "Abstraction"]

UNKNOWN: Mark = (-1, -1)
"""The mark of a plan that Spark has not logged."""


class Abstraction:
    """The view of one run of the code, whose stream is known at its end.

    Attributes:
        sizes: how many records each shard has.
        number: the record of each of the model's, or of a job's.
        marks: of the plans that Spark has logged.
    """

    def __init__(
        self,
        records: Mapping[int, tuple[str, int]],
        parents: Mapping[str, Collection[str]],
        unreadable: Collection[int] = (),
    ) -> None:
        """Take the shard and the sequence number of each record, the shards with their parents, and bad records."""
        names = sorted({shard for shard, _ in records.values()} | parents.keys())
        self.index = {name: k for k, name in enumerate(names)}
        self._sequences = [sorted(at for shard, at in records.values() if shard == name) for name in names]
        self.sizes = tuple(map(len, self._sequences))
        self._first = [sum(self.sizes[:k]) for k in range(len(self.sizes))]
        self.number = {
            n: self._first[self.index[shard]] + self._sequences[self.index[shard]].index(at)
            for n, (shard, at) in records.items()
        }
        self._parents = parents
        self.parents = {
            self.index[name]: tuple(self.index[one] for one in above if one in self.index)
            for name, above in parents.items()
        }
        self.unreadable = frozenset(self.number[n] for n in unreadable)
        self.marks: dict[str, Mark] = {}

    @classmethod
    def of_model(cls, world: World) -> Self:
        """Return the view of a schedule of the model."""
        listed = world.kinesis.list_shards("orders")
        records = {n: (record.shard, record.sequence) for n, record in world.records.items()}
        return cls(records, {one.id: one.parents for one in listed}, world.unreadable)

    def plan_of(self, text: str) -> real.Plan:
        """Return the plan of an offset."""
        return plan_from_offset(json.loads(text))

    def log(self, seen: SeenLog) -> Log:
        """Return a log of Spark: an offset before any batch is none."""
        left = seen.offsets[: seen.committed]
        done = self.plan(self.plan_of(left[-1])) if left else None
        hand = self.plan(self.plan_of(seen.offsets[-1])) if len(seen.offsets) > seen.committed else None
        return Log(*(one if one and one.mark != (-2, -2) else None for one in (done, hand)))

    def plan(self, plan: real.Plan) -> Plan:
        """Return a plan: the ancestors of the shards that it names are done."""
        done, left = set[str](), list(plan.positions)
        while left:
            parents = self._parents.get(left.pop(), ())
            left += [one for one in parents if one not in done]
            done.update(parents)
        at = tuple(
            self._at(k, plan.positions[name])
            if name in plan.positions
            else self.sizes[k]
            if name in done
            else 0
            for name, k in self.index.items()
        )
        due, dead, rest = (self._waiting(runs.items()) for runs in (plan.retries, plan.dead, plan.notDone))
        read = frozenset(self.index[name] for name in plan.read)
        mark = self._mark(plan.plan) or (-2, -2)
        return Plan(plan.txid, mark, at, read, due, dead, rest, plan.epoch, plan.adopter)

    def zk(self, nodes: Nodes) -> Zk | None:
        """Return what the nodes say; None before there is an epoch."""
        base = next((path.removesuffix("/epoch") for path in nodes if path.endswith("/epoch")), None)
        if base is None:
            return None

        def get(name: str, kind: Any) -> Any:
            path = f"{base}/{name}"
            return decode(path, nodes[path].data, kind) if path in nodes else None

        shards = []
        for name, k in self.index.items():
            node, flight = (
                get(f"checkpoints/{name}", real.CheckpointNode),
                get(f"inflight/{name}", real.InflightNode),
            )
            runs = [*flight.waiting, *flight.dead] if flight else []
            at = self._at(k, node.position) if node and node.position else 0
            shards.append(Shard(at, self._waiting([(name, runs)]), node.txid if node else 0))
        settled = get("settled", real.SettledNode)
        judging, past = get("judging", real.JudgingNode), get("past", real.PastNode)
        txid = settled.txid if settled else 0
        return Zk(
            tuple(shards),
            nodes[f"{base}/epoch"].version,
            txid,
            self._mark(settled.plan) if settled else None,
            self._batch(txid + 1, get),
            (judging.epoch, *judging.earlier) if judging else (),
            nodes[f"{base}/judging"].version + 1 if judging else 0,
            Past(past.epoch, past.txid, self._mark(past.plan), past.lost_upto) if past else Past(),
        )

    def _batch(self, txid: int, get: Any) -> Batch | None:
        node, acks = get(f"batches/{txid}", real.BatchNode), get(f"acks/{txid}", real.BatchOutcome)
        if node is None:
            return None
        pins = []
        for name, k in self.index.items():
            pin = get(f"batches/{txid}/{name}", real.Pin)
            pins.append(pin and self._pin(k, node.plan, name, pin))
        outcome = acks and Outcome(
            self._mark(acks.plan) or UNKNOWN,
            frozenset(
                record
                for shard, pieces in acks.not_done.items()
                for piece in pieces
                for record in self._among(self.index[shard], piece)
            ),
            acks.epoch,
        )
        plan = self.plan(node.plan)._replace(rest=frozenset())
        return Batch(plan, node.epoch, tuple(pins), outcome)

    def _pin(self, k: int, plan: real.Plan, name: str, pin: real.Pin) -> Pin:
        served = set[int]()
        for index, ((run, is_dead), count) in enumerate(zip(plan.due(name), pin.served, strict=False)):
            records, is_gone = self._among(k, run), index in pin.missing
            found = len(records) if is_gone and is_dead else max(count, 0)
            # A stream drops its oldest records.
            served.update(records[len(records) - found :] if is_gone else records[:found])
        mark = self._mark(pin.plan) or UNKNOWN
        return Pin(mark, self._at(k, pin.end), frozenset(served), pin.epoch, pin.first_reader)

    def _at(self, k: int, text: str) -> int:
        position = parse_position(text)
        if type(position).__name__ == "ShardEnd":
            return self.sizes[k]
        record = getattr(position, "record", None)
        below = int(record.sequence) - (type(position).__name__ == "At") if record is not None else 0
        return sum(sequence <= below for sequence in self._sequences[k])

    def _among(self, k: int, piece: Any) -> list[int]:
        last = int(RecordPosition.parse(piece.last).sequence)
        first = (
            int(RecordPosition.parse(piece.first).sequence)
            if piece.first
            else int(RecordPosition.parse(piece.prev).sequence) + 1
        )
        return [self._first[k] + n for n, at in enumerate(self._sequences[k]) if first <= at <= last]

    def _waiting(self, some: Iterable[tuple[str, Sequence[Any]]]) -> Waiting:
        return frozenset(
            (record, run.attempt)
            for shard, runs in some
            for run in runs
            for record in self._among(self.index[shard], run)
        )

    def _mark(self, text: str) -> Mark | None:
        return self.marks.get(text, UNKNOWN) if text and text != "none" else None
