"""The figures of an application and of its shards, as they are seen from outside: from its nodes and the time. Pure."""

# Without annotations as texts: those of the figures have functions.

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from kinesis_trident.checkpoint.model.facts import NO_FACTS, ShardFacts, facts_of
from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.checkpoint.model.pauses import Pause, correct_ends, find_paused
from kinesis_trident.checkpoint.model.run_status import Lag, Seen, StatusNode, lag_growth, rates, total_lag
from kinesis_trident.checkpoint.model.standing import (
    PAUSED,
    REFUSED,
    Looks,
    Share,
    StandingCause,
    cause_of,
    find_standing,
)
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.finding import NO_LIMITS, Limits
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.text import duration, lag_text
from kinesis_trident.tracker.failure import kind_in

_NAMED = 3
COMMAND = "\0"
"""Stands before and behind the line of a command in a remedy: no name in ZooKeeper has it."""


@dataclass(frozen=True)
class HomeFacts:
    """What is known of one home at `now`, in epoch milliseconds; `limits`: of a check."""

    snapshot: Snapshot
    now: int
    limits: Limits = NO_LIMITS

    @cached_property
    def shards(self) -> dict[str, ShardFacts]:
        """Return the figures of each shard, by name."""
        paused = self.paused
        return {
            shard: _facts(self.snapshot, shard, self.now, is_paused=shard in paused)
            for shard in self.snapshot.shard_ids
        }

    @cached_property
    def pauses(self) -> tuple[Pause, ...]:
        """Return what people have paused and is not over."""
        pauses = correct_ends(self.snapshot.pauses, self.now).values()
        return tuple(one for one in pauses if one.lasts(self.now))

    @cached_property
    def paused(self) -> dict[str, Pause]:
        """Return the pause of each shard that is not read because of one."""
        snapshot = self.snapshot
        waiting = (
            shard
            for shard in (snapshot.shards if self.pauses else ())
            if _waits_for_parents(snapshot, shard, _seen_of(snapshot, shard))
        )
        return find_paused(self.pauses, snapshot.shards, {*waiting})

    def lags_of(self, share: Share) -> dict[str, Lag]:
        """Return the lags that have this part in the sum, by shard."""
        return {shard: one.lag for shard, one in self.shards.items() if one.standing.share is share}

    @cached_property
    def counted(self) -> dict[str, Lag]:
        """Return the lags that count in the sum, by shard."""
        return self.lags_of(Share.COUNTED)

    @cached_property
    def apart(self) -> dict[str, Lag]:
        """Return the lags of what is paused, by shard: the sum leaves them out, and something else tells them."""
        return self.lags_of(Share.APART)

    @cached_property
    def figures(self) -> "HomeFigures":
        """Return the figures of all shards together."""
        return HomeFigures(**{key: figure.of(self) for key, figure in FIGURES.items()})

    def inflight(self, shard: str) -> int:
        """Return the records of a shard that are read and not done, with those of the batch in hand."""
        one, pin = self.shards.get(shard, NO_FACTS), self.snapshot.pins.get(shard)
        return one.figures.held + (pin.fresh if pin else 0)

    @property
    def lag_ms(self) -> int | None:
        """Return the age of the oldest unread record of what is not paused; None if it is unknown, or all is."""
        is_known = self.snapshot.shards and (self.counted or not self.apart)
        return total_lag(self.counted) if is_known else None

    @property
    def oldest_ms(self) -> int | None:
        """Return the age of the oldest unread record that may expire, paused or not; None if it is unknown."""
        lags = {shard: one.lag for shard, one in self.shards.items() if one.standing.expiry}
        return total_lag(lags) if self.snapshot.shards else None

    @property
    def status(self) -> StatusNode | None:
        """Return the status of the run that is connected; None for a part of its shards: it is of all together."""
        status = self.snapshot.newest_status
        is_its = self.snapshot.part is None and status is not None and status.epoch == self.snapshot.epoch
        return status if is_its else None

    @property
    def rates(self) -> tuple[float | None, float | None, float | None]:
        """Return the seconds by which the lag grows, and the records that are read and that come in, in a second."""
        status = self.status
        if status is None:
            return None, None, None
        return lag_growth(status.lags, status.reads), *rates(status.lags, status.reads)

    @property
    def skew_ms(self) -> int:
        """Return by how much the oldest unread record is older than the newest one that was read.

        A watermark with a shorter delay drops it. Only records of which the run or a turn has said that they are unread
        count; 0 if there are none.
        """
        nodes = self.snapshot.checkpoints
        newest = max((node.arrival for node in nodes.values() if node.arrival is not None), default=0)
        oldest = newest
        for shard in self.counted:
            node = nodes.get(shard)
            at = self.shards[shard].seen.arrival or (
                node.arrival if node is not None and node.behind_ms > 0 else None
            )
            oldest = min(oldest, at) if at is not None else oldest
        return newest - oldest

    def line(self, command: str, *words: str, options: Iterable[str] = ()) -> str:
        """Return the line of a command as part of a remedy, of which it can be told."""
        return f"{COMMAND}{self.snapshot.command(command, *words, options=options)}{COMMAND}"

    def since(self, at: int) -> str:
        """Return the time that has passed, for people: another clock may be ahead of ours."""
        return duration(max(0, self.now - at))

    def ago(self, at: int) -> str:
        """Return how long ago a time was, for people."""
        return f"{self.since(at)} ago"

    def labels(self, shards: Iterable[str]) -> tuple[str, ...]:
        """Return shards as people name them, in order."""
        return tuple(map(self.snapshot.label_of, sorted(shards)))

    def names(self, shards: Iterable[str]) -> str:
        """Return the first of some shards as part of a sentence, with the number of all."""
        labels = self.labels(shards)
        more = len(labels) - _NAMED
        if more > 0:
            return f"{count_noun(len(labels), 'shard')} ({', '.join(labels[:_NAMED])} and {more} more)"
        return f"shard{'s' if len(labels) > 1 else ''} {', '.join(labels)}"


def _facts(snapshot: Snapshot, shard: str, now: int, *, is_paused: bool) -> ShardFacts:
    node, held = snapshot.checkpoints.get(shard), snapshot.inflight.get(shard)
    seen, key = _seen_of(snapshot, shard), snapshot.key_of(shard)
    stream = key.stream if key is not None else ""
    # Without any lineage it is not known which shards are listed.
    listed = snapshot.shards.get(shard) if snapshot.shards else ShardLineage()
    standing = find_standing(
        listed,
        held,
        is_read=stream in snapshot.active,
        waits=_waits_for_parents(snapshot, shard, seen),
        is_paused=is_paused,
    )
    if standing.looks is Looks.NEVER:
        # A status says of all shards that it does not name that they are at their tips: it means those that are read.
        seen = Seen()
    is_connected = snapshot.owner is not None
    # A run that has ended reads nothing, of whatever shard: why it read no more of this one is over.
    causes = (
        {cause_of(seen.standing)}
        if is_connected and snapshot.end(now) is None
        else set[StandingCause | None]()
    )
    # That is known, and a run says it until its batch is done.
    causes.discard(PAUSED)
    if seen.refused is not None:
        causes.add(REFUSED)
    return facts_of(
        node,
        held,
        snapshot.dead_letters.get(shard),
        seen,
        standing.also(*(cause for cause in causes if cause is not None)),
        snapshot.status.retention.get(stream) if snapshot.status is not None else None,
        now,
        is_looked_at=is_connected,
    )


def _seen_of(snapshot: Snapshot, shard: str) -> Seen:
    """Return what the run has said of a shard, as far as it still holds: a batch may have moved the shard on since."""
    status, node = snapshot.status, snapshot.checkpoints.get(shard)
    if status is None:
        return Seen()
    seen = status.seen_of(shard)
    is_past = node is not None and node.txid > status.settled
    return Seen(refused=seen.refused, why=seen.why) if is_past else seen


def _waits_for_parents(snapshot: Snapshot, shard: str, seen: Seen) -> bool:
    """Return whether a shard is not begun, and no run says that it has looked at it: it is read after its parents."""
    node, lineage = snapshot.checkpoints.get(shard), snapshot.shards.get(shard)
    is_begun = node is not None and (node.txid > 0 or node.checkpoint is not None)
    if lineage is None or is_begun or seen.seen is not None:
        return False
    parents = [snapshot.shards[parent] for parent in lineage.parents if parent in snapshot.shards]
    return any(parent.state != "drained" for parent in parents)


class Figure(NamedTuple):
    """A figure: how it is computed, and the words that the faces have for it; a face without words leaves it out.

    Attributes:
        of: computes it.
        said: what the screen says after a number of records.
        perf: its name for monitoring plugins; it is on the page's cards too, and on the screen also if it is zero.
        tile: its title on the page, what is said below it, and the class of one that is not zero.
        text: its value on the page; without it a number.
    """

    of: Callable[[HomeFacts], Any]
    said: str = ""
    perf: str = ""
    tile: tuple[str, str, str] | None = None
    text: Callable[["HomeFigures"], str] | None = None


def _sum(nodes: str, name: str, *words: Any) -> Figure:
    find, value = attrgetter(nodes), attrgetter(name)
    return Figure(lambda at: sum(map(value, find(at).values())), *words)


def _least(values: Iterable[int | None]) -> int | None:
    """Return the least, or None where one is unknown: that of the others would be a comfort."""
    found = list(values)
    known = [one for one in found if one is not None]
    return min(known, default=None) if len(known) == len(found) else None


def _unread(at: HomeFacts) -> int | None:
    lag, rate = at.lag_ms, at.rates[2]
    return round(lag / 1000 * rate) if lag is not None and rate is not None else None


def _expires_in(figures: "HomeFigures") -> str:
    if figures.lag_ms == 0:
        return "all of it"
    left = figures.retention_left_ms
    return "unknown" if left is None or figures.lag_ms is None else duration(left)


def _inflight(at: HomeFacts) -> int:
    part = at.snapshot.part
    return sum(map(at.inflight, at.shards.keys() | {*at.snapshot.pins} if part is None else part))


def _failed(at: HomeFacts) -> dict[str, int]:
    """Return the failures that the connected run has counted, by kind."""
    found: Counter[str] = Counter()
    for name, count in at.status.counts.failed.items() if at.status is not None else ():
        found[kind_in(name)] += count
    return dict(sorted(found.items()))


class HomeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of all shards of an application together.

    Attributes:
        connected: its newest run holds its session with ZooKeeper.
        lag_ms: the age of the oldest unread record; None if it is unknown.
        lag_growth: the seconds by which it grows in a second, over the last minutes; None if that is unknown.
        read_rate: records read in a second, over the last minutes; None if that is unknown.
        input_rate: an estimate of the records that come in, in a second; None if there is none.
        unread: an estimate of the unread records, from the lag and that rate; None if there is none.
        seen_at: the oldest of the last looks at what is unread, in epoch milliseconds; None if a shard had none.
        paused_shards: those that people have paused, or whose parents.
        paused_lag_ms: the age of the oldest unread record of these, which is not in `lag_ms`; None if it is unknown.
        retention_left_ms: until the oldest unread record expires; None if that is unknown.
        inflight: records that are read and not done.
        retrying: of these, failed ones that come back.
        exhausted: of these, failed too often and not dead-lettered yet.
        unacked: of these, not acked yet, with ackMode=explicit.
        dead_lettered: records that were dead-lettered or skipped, ever.
        dead_left: of these, not delivered again, or failed again since.
        read: records delivered for the first time, ever.
        failed: failures since the run began, by kind: RETRY is what was raised or said, PERMANENT what was for good,
            AFTER what asked for a delay; the others are the words of docs/retries.md.
    """

    connected: Annotated[bool, Figure(lambda at: at.snapshot.owner is not None)]
    lag_ms: Annotated[
        int | None,
        Figure(
            lambda at: at.lag_ms,
            perf="lag",
            tile=("Lag", "age of the oldest unread record", ""),
            text=lambda figures: lag_text(figures.lag_ms),
        ),
    ]
    lag_growth: Annotated[float | None, Figure(lambda at: at.rates[0])]
    read_rate: Annotated[float | None, Figure(lambda at: at.rates[1])]
    input_rate: Annotated[float | None, Figure(lambda at: at.rates[2])]
    unread: Annotated[int | None, Figure(_unread)]
    seen_at: Annotated[int | None, Figure(lambda at: _least(lag.seen_at for lag in at.counted.values()))]
    paused_shards: Annotated[int, Figure(lambda at: len(at.apart))]
    paused_lag_ms: Annotated[int | None, Figure(lambda at: total_lag(at.apart) if at.apart else None)]
    retention_left_ms: Annotated[
        int | None,
        Figure(
            lambda at: _least(
                one.figures.retention_left_ms for one in at.shards.values() if one.standing.expiry
            ),
            tile=("Retention left", "until that record expires", ""),
            text=_expires_in,
        ),
    ]
    inflight: Annotated[
        int, Figure(_inflight, "in flight", "inflight", ("In flight", "read and not done", ""))
    ]
    retrying: Annotated[
        int,
        _sum(
            *("shards", "figures.retrying", "waiting for a retry", "retrying"),
            ("Retrying", "will be delivered again", "warn"),
        ),
    ]
    exhausted: Annotated[int, _sum("shards", "figures.exhausted", "failed too often")]
    unacked: Annotated[int, _sum("shards", "figures.unacked", "not acked yet")]
    dead_lettered: Annotated[
        int,
        _sum(
            *("snapshot.dead_letters", "count", "dead-lettered", "dead"),
            ("Dead letters", "failed for good, or skipped", "bad"),
        ),
    ]
    dead_left: Annotated[int, _sum("snapshot.dead_letters", "left")]
    read: Annotated[int, _sum("snapshot.checkpoints", "read")]
    failed: Annotated[dict[str, int], Figure(_failed)]


FIGURES: dict[str, Figure] = {
    key: hint.__metadata__[0] for key, hint in get_type_hints(HomeFigures, include_extras=True).items()
}
"""The figures by their keys in JSON, in order."""
