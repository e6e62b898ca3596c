"""Tells the life of a query in the log: a line for each change, with stream and shard, and never very many."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import DeadLetterRecord, ShardLineage
from kinesis_trident.checkpoint.model.standing import explain_many
from kinesis_trident.common.visible_text import make_visible, shorten
from kinesis_trident.spout.log_lines import Seldom
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, Listed, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.tip.looks import Look

log = logging.getLogger(__name__)

_EVERY = 10.0
"""Seconds between two lines about failed records, dead letters, or blocked shards; what comes between is added up."""

_REFUSED_MS = 10_000
"""Milliseconds for which a shard refuses every look before it is worth a line: it may be one large read."""

_SAID_AGAIN_MS = 5 * 60_000
_SLOW_SETTLE = 5.0
_NAMED = 5
_REASONS = 3


@dataclass(slots=True)
class _Blocked:
    """A shard that reads nothing new: since when, why, and whether the log says so."""

    since: float
    why: str = ""
    is_told: bool = False


class LifeLog:
    """Writes the lines about shards and batches.

    `letters` says what becomes of records that failed for good.
    """

    def __init__(self, layout: Layout, letters: str, steady: Callable[[], float] = time.monotonic) -> None:
        self._layout = layout
        self._letters = letters
        self._txid = 0
        self._steady = steady
        self._failed: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._first_dead = ""
        self._failed_due = self._dead_due = steady()
        self._blocked: dict[str, _Blocked] = {}
        self._blocked_due = steady()
        self._refused_since: dict[str, int] = {}
        self._say_again_at: dict[str, int] = {}
        self._seldom = Seldom(_SAID_AGAIN_MS / 1000, steady)

    def watch(self, before: Shards, event: ShardEvent, after: Shards) -> None:
        """Tell what has happened to the shards."""
        match event:
            case Listed():
                new = after.lineage.keys() - before.states.keys()
                self.log_resharded({shard: after.lineage[shard] for shard in new})
            case BatchSettled(finished=finished, done=done):
                self.log_settled(
                    finished.plan.txid,
                    finished.failures.values(),
                    [letter for result in done.values() for letter in result.dead_lettered],
                    {shard: result.inflight.blocked for shard, result in done.items()},
                    event.ended,
                    event.seconds,
                )
                states = after.states.values()
                many = explain_many(state.inflight for state in states if state.inflight is not None)
                if many and self._seldom("many"):
                    log.warning(
                        "%s. maxFetchRecordsPerShard bounds those of a batch, and maxRetryingRecords those that wait",
                        many,
                    )

    def log_settled(
        self,
        txid: int,
        failures: Iterable[Mapping[str, int]],
        letters: Iterable[DeadLetterRecord],
        blocked: Mapping[str, str],
        ended: Sequence[str],
        seconds: float,
    ) -> None:
        """Tell of a settled batch: its failures by reason, dead letters, shards that are blocked, free, or ended.

        `blocked`: why, by each shard of the batch, empty for those that read on.
        """
        self._txid = txid
        for one in failures:
            self._failed.update(one)
        for letter in letters:
            self._first_dead = self._first_dead or letter.message_id
            self._dead[letter.reason] += letter.count
        self._tell_failures()
        self._tell_blocked(blocked)
        if ended:
            log.info("%s: read to the end", self._names(ended))
        if seconds > _SLOW_SETTLE:
            log.warning(
                "txid %d: settling took %.1f s. ZooKeeper is slow, or very many records failed", txid, seconds
            )

    def log_resharded(self, new: Mapping[str, ShardLineage]) -> None:
        """Tell of shards that were listed for the first time."""
        for shard, node in sorted(new.items())[:_NAMED]:
            parents = f", child of {self._names(node.parents)}" if node.parents else ""
            log.info("%s: new shard%s", self._name(shard), parents)
        if len(new) > _NAMED:
            log.info("%d more new shards", len(new) - _NAMED)

    def log_refused(self, looks: Mapping[str, Look], now: int) -> None:
        """Tell of shards whose every look is refused, now and then, and when they answer again.

        `looks`: the last look at each of them; `now`: as in `Look`.
        """
        begun: dict[str, list[str]] = {}
        for shard, look in looks.items():
            since = look.refused if look.refused is not None else now
            if now - since >= _REFUSED_MS and now >= self._say_again_at.get(shard, now):
                self._refused_since[shard] = since
                self._say_again_at[shard] = now + _SAID_AGAIN_MS
                begun.setdefault(look.why, []).append(shard)
        ended = sorted(self._refused_since.keys() - looks.keys())
        longest = max((now - self._refused_since.pop(shard) for shard in ended), default=0)
        for shard in ended:
            del self._say_again_at[shard]
        for why, shards in begun.items():
            seconds = (now - min(self._refused_since[shard] for shard in shards)) / 1000
            what = "Kinesis throttles the reads" if why == "throttled" else "the reads fail"
            said = "" if why == "throttled" else f": {make_visible(shorten(looks[shards[0]].said, 500))}"
            log.warning("%s: %s, for %.0f s now%s", self._names(shards), what, seconds, said)
        if ended:
            log.info("%s: Kinesis answers again after %.0f s", self._names(ended), longest / 1000)

    def log_passed(self, shards: Sequence[str], seconds: float) -> None:
        """Tell of shards that the others wait for no longer."""
        log.warning(
            "%s: could not be read for %.0f s, so the other shards wait no longer (maxShardSkew). What is unread there "
            "will be late for a watermark",
            self._names(shards),
            seconds,
        )

    def log_too_seldom(self, bound: float, pace: float) -> None:
        """Tell, now and then, that batches begin so seldom that the query cannot catch up."""
        if self._seldom("pace"):
            log.warning(
                "a batch reads %.0f s of the stream at most (maxShardSkew), and batches are %.0f s apart: the query "
                "does not catch up. Set maxShardSkew to three times that, or to auto",
                bound,
                pace,
            )

    def flush(self) -> None:
        """Write what is still to be said, at the end of the run."""
        self._failed_due = self._dead_due = self._steady()
        self._tell_failures()

    def _tell_failures(self) -> None:
        now = self._steady()
        if self._failed and now >= self._failed_due:
            self._failed_due = now + _EVERY
            log.warning("up to txid %d: %s", self._txid, _format_counts(self._failed, "failed attempt{s}"))
            self._failed.clear()
        if self._dead and now >= self._dead_due:
            self._dead_due = now + _EVERY
            log.warning(
                "up to txid %d: %s (%s), the first is %s",
                self._txid,
                _format_counts(self._dead, "record{s} failed for good"),
                self._letters,
                self._first_dead,
            )
            self._dead.clear()
            self._first_dead = ""

    def _tell_blocked(self, blocked: Mapping[str, str]) -> None:
        now = self._steady()
        free = []
        for shard, why in blocked.items():
            if why:
                self._blocked.setdefault(shard, _Blocked(now)).why = why
            elif shard in self._blocked:
                free.append((shard, self._blocked.pop(shard)))
        told = [(shard, now - one.since) for shard, one in free if one.is_told]
        if told:
            names = self._names([shard for shard, _ in told])
            log.info("%s: new records are read again, after %.0f s", names, max(since for _, since in told))
        new = {shard: one for shard, one in sorted(self._blocked.items()) if not one.is_told}
        if new and now >= self._blocked_due:
            self._blocked_due = now + _EVERY
            (shard, first), others = next(iter(new.items())), len(new) - 1
            more = f"; {others} other shard{'s are' if others != 1 else ' is'} blocked too" if others else ""
            log.warning("%s: %s%s", self._name(shard), first.why, more)
            for one in new.values():
                one.is_told = True

    def _name(self, shard: str) -> str:
        try:
            return self._layout.key_of(shard).source
        except ValueError:
            # A parent that was removed before its stream was read together with others.
            return shard

    def _names(self, shards: Sequence[str]) -> str:
        names = sorted(map(self._name, shards))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"{', '.join(names[:_NAMED])}{more}"


def _format_counts(reasons: Counter[str], what: str) -> str:
    """Return how many there were of what, such as attempt{s}, and the most frequent reasons."""
    total = reasons.total()
    said = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(_REASONS))
    more = f"; {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
    return f"{total} {what.format(s='s' if total != 1 else '')}: {said}{more}"
