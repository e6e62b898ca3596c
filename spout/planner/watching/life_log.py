"""Tells the life of a query in the log: a line for each change, with stream and shard, and never very many."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import ShardLineage
from kinesis_trident.checkpoint.model.standing import MANY_BOUNDED, explain_many
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import make_visible, shorten
from kinesis_trident.spout.log_lines import Seldom
from kinesis_trident.spout.planner.settling.shard_events import BatchSettled, HomeUnit, Paused, ShardEvent
from kinesis_trident.spout.planner.shards.source_shards import Shards
from kinesis_trident.spout.planner.sight import Blocked, Sights
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


class LifeLog:
    """Writes the lines about shards and batches; the sights of a shard say what was told of it.

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
        self._blocked_due = steady()
        self._seldom = Seldom(_SAID_AGAIN_MS / 1000, steady)

    def watch(self, before: Shards, event: ShardEvent, after: Shards, sights: Sights) -> Sights:
        """Tell what has happened to the shards; return their sights with what was told."""
        match event:
            case HomeUnit() if before.states and after.lineage is not before.lineage:
                new = after.lineage.keys() - before.states.keys()
                self.log_resharded({shard: after.lineage[shard] for shard in new})
            case Paused():
                self._tell_paused(before, after)
            case BatchSettled():
                many = explain_many(one.inflight for one in after.states.values() if one.inflight is not None)
                sights = self._log_settled(event, sights)
                if many and self._seldom("many"):
                    log.warning("%s. %s", many, MANY_BOUNDED)
        return sights

    def _log_settled(self, event: BatchSettled, sights: Sights) -> Sights:
        """Tell of a batch: its failures by reason, dead letters, shards that are blocked, free, or ended."""
        self._txid = event.finished.plan.txid
        failures = event.finished.failures
        for unit in event.units:
            if unit.shard in failures:
                self._failed.update(failures[unit.shard])
            for letter in unit.buried:
                self._first_dead = self._first_dead or letter.message_id
                self._dead[letter.reason] += letter.count
        self._tell_failures()
        blocked = {unit.shard: unit.state.blocked for unit in event.units if unit.state is not None}
        sights = self._tell_blocked(blocked, sights)
        if event.ended and event.is_whole:
            log.info("%s: read to the end", self.names_of(event.ended))
        if event.seconds > _SLOW_SETTLE:
            log.warning(
                "txid %d: settling took %.1f s. ZooKeeper is slow, or very many records failed",
                self._txid,
                event.seconds,
            )
        return sights

    def log_resharded(self, new: Mapping[str, ShardLineage]) -> None:
        """Tell of shards that were listed for the first time."""
        for shard, node in sorted(new.items())[:_NAMED]:
            parents = f", child of {self.names_of(node.parents)}" if node.parents else ""
            log.info("%s: new shard%s", self._name(shard), parents)
        if len(new) > _NAMED:
            log.info("%d more new shards", len(new) - _NAMED)

    def log_refused(self, looks: Mapping[str, Look], now: int, sights: Sights) -> Sights:
        """Tell of shards whose every look is refused, now and then, and when they answer again.

        `looks`: the last look at each of them; `now`: as in `Look`.
        """
        begun: dict[str, dict[str, int]] = {}
        for shard, look in looks.items():
            since, told = now if look.refused is None else look.refused, sights.of(shard).denied
            if now - since >= _REFUSED_MS and (told is None or now >= told[1]):
                begun.setdefault(look.why, {})[shard] = since
        marks: dict[str, tuple[int, int] | None] = {}
        for why, some in begun.items():
            marks |= {shard: (since, now + _SAID_AGAIN_MS) for shard, since in some.items()}
            what = "Kinesis throttles the reads" if why == "throttled" else "the reads fail"
            first, seconds = looks[next(iter(some))], (now - min(some.values())) / 1000
            said = "" if why == "throttled" else f": {make_visible(shorten(first.said, 500))}"
            log.warning("%s: %s, for %.0f s now%s", self.names_of(list(some)), what, seconds, said)
        ended = {s: one.denied[0] for s, one in sights.by_shard.items() if one.denied and s not in looks}
        if ended:
            longest = (now - min(ended.values())) / 1000
            log.info("%s: Kinesis answers again after %.0f s", self.names_of(list(ended)), longest)
        marks |= dict.fromkeys(ended)
        return sights.put({shard: replace(sights.of(shard), denied=mark) for shard, mark in marks.items()})

    def log_passed(self, shards: Sequence[str], seconds: float) -> None:
        """Tell of shards that the others wait for no longer."""
        log.warning(
            "%s: could not be read for %.0f s, so the other shards wait no longer (maxShardSkew). What is unread there "
            "will be late for a watermark",
            self.names_of(shards),
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

    def _tell_paused(self, before: Shards, after: Shards) -> None:
        """Tell of each pause that has begun, changed or ended, whatever shards are there."""
        was, lasting = ({one.shards: one for one in shards.lasting} for shards in (before, after))
        for shards in sorted(was.keys() | lasting.keys()):
            now, what = lasting.get(shards), self._layout.said_of(shards)
            if now is None:
                log.info("%s: not paused any longer", what)
            elif now != was.get(shards):
                until = f" until {iso_time(now.until)}" if now.until is not None else ""
                more = ", nor what has failed" if now.everything else ""
                why = make_visible(now.reason)
                log.warning("%s: paused%s by %s: nothing new is read%s. %s", what, until, now.by, more, why)

    def _tell_blocked(self, blocked: Mapping[str, str], sights: Sights) -> Sights:
        now, known, marks, free = self._steady(), sights.by_shard, dict[str, Blocked | None](), {}
        for shard, why in blocked.items():
            was = known[shard].halt if shard in known else None
            if why:
                marks[shard] = was._replace(why=why) if was else Blocked(now, why)
            elif was is not None:
                marks[shard] = None
                if was.is_told:
                    free[shard] = now - was.since
        if free:
            names = self.names_of(list(free))
            log.info("%s: new records are read again, after %.0f s", names, max(free.values()))
        if now >= self._blocked_due:
            still = {shard: one.halt for shard, one in known.items() if one.halt} | marks
            new = sorted((shard, one) for shard, one in still.items() if one and not one.is_told)
            if new:
                self._blocked_due = now + _EVERY
                (shard, first), others = new[0], len(new) - 1
                are = "shards are" if others > 1 else "shard is"
                more = f"; {others} other {are} blocked too" if others else ""
                log.warning("%s: %s%s", self._name(shard), first.why, more)
                marks |= {shard: one._replace(is_told=True) for shard, one in new}
        return sights.put({shard: replace(sights.of(shard), halt=one) for shard, one in marks.items()})

    def _name(self, shard: str) -> str:
        try:
            return self._layout.key_of(shard).source
        except ValueError:
            # A parent that was removed before its stream was read together with others.
            return shard

    def names_of(self, shards: Sequence[str]) -> str:
        """Return the first of some shards as people name them, with the number of the others."""
        names = sorted(map(self._name, shards))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"{', '.join(names[:_NAMED])}{more}"


def _format_counts(reasons: Counter[str], what: str) -> str:
    """Return how many there were of what, such as attempt{s}, and the most frequent reasons."""
    total = reasons.total()
    said = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(_REASONS))
    more = f"; {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
    return f"{total} {what.format(s='s' if total != 1 else '')}: {said}{more}"
