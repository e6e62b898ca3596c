"""The status of an application, and what is wrong: one document for the screen, for JSON, and for a notebook. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kinesis_trident.checkpoint.model.run_status import How, RunEnd, run_name
from kinesis_trident.common.times import iso_time
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.figures import FIGURES, HomeFacts, HomeFigures
from kinesis_trident.console.finding import NO_LIMITS, Finding, Level, Limits, worst
from kinesis_trident.console.rules import find
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.text import duration


class LastRun(msgspec.Struct, frozen=True):
    """The newest run; `ended`: how it has, None if it has not, or without a word."""

    epoch: int
    host: str
    pid: int
    since_at: int
    ended: How | None


class Progress(msgspec.Struct, frozen=True):
    """The batch in hand: its txid, what is done with it, and since when by ZooKeeper's clock, if that is known."""

    txid: int | None
    phase: str
    since_at: int | None


class Summary(HomeFigures, frozen=True):
    """The state of one home, without what is wrong; in JSON the figures come last, because they have keywords only.

    Attributes:
        application: its name.
        streams: those that have their home there.
        home: its path.
        level: of the worst finding that is no note.
        run: the newest one; None before the first.
        ends: how the last runs ended, the newest last.
        batch: the one in hand.
        settled: the newest settled txid; None before the first.
        shards: their number.
    """

    application: str
    streams: tuple[str, ...]
    home: str
    level: Level
    run: LastRun | None
    ends: tuple[RunEnd, ...]
    batch: Progress
    settled: int | None
    shards: int


class Status(Summary, frozen=True, kw_only=True):
    """The status of one home, as `--json` prints it; keys as in `View`. `findings`: what is wrong, the worst first."""

    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> list[Finding]:
        """The findings that are no notes."""
        return [one for one in self.findings if one.level is not Level.NOTE]


_ENDED = {
    "stopped": "was stopped",
    "finished": "has finished",
    "failed": "failed",
    "interrupted": "ended in a batch",
}
_EARLIER = 3
"""The number of earlier runs whose ends the screen shows; JSON has them all."""

_BEHIND_MS = 60_000
_STEADY = 0.01
"""Seconds a second: a lag that shrinks by less does not shrink."""


def status_of(snapshot: Snapshot, now: int, limits: Limits = NO_LIMITS) -> Status:
    """Return the status. `now` is in epoch milliseconds."""
    facts = HomeFacts(snapshot, now, limits)
    findings = find(facts)
    what, since = snapshot.phase(now)
    run, batch, end = snapshot.run, snapshot.batch, snapshot.end(now)
    return Status(
        application=snapshot.layout.application,
        streams=snapshot.streams,
        home=snapshot.layout.base,
        level=worst(one.level for one in findings),
        run=None
        if run is None
        else LastRun(snapshot.epoch, run.host, run.pid, run.since, end.how if end else None),
        ends=snapshot.ends,
        batch=Progress(batch.plan.txid if batch else None, what, since),
        settled=snapshot.settled.txid if snapshot.settled else None,
        shards=len(snapshot.shard_ids),
        findings=tuple(findings),
        **msgspec.structs.asdict(facts.figures),
    )


def lines_of(status: Status, now: int) -> list[tuple[str, str]]:
    """Return the status as labels and sentences for people, without the findings."""
    run, batch = status.run, status.batch
    if run is None:
        runs = "never started"
    elif status.connected:
        held = duration(max(0, now - run.since_at))
        runs = f"{_name(run)}, for {held}"
    else:
        how = f"; it {_ENDED[run.ended]}" if run.ended else ""
        runs = f"none; the last was {_name(run)}{how}"
    # Of a query that has stopped nothing takes longer and longer.
    since = ""
    if batch.since_at is not None and status.connected:
        since = f", for {duration(max(0, now - batch.since_at))}"
    settled = f"settled: txid {status.settled}" if status.settled is not None else "nothing settled yet"
    return [
        ("application", status.application),
        ("stream" if len(status.streams) == 1 else "streams", ", ".join(status.streams) or "none"),
        ("run", runs),
        ("batch", f"{batch.phase}{since}; {settled}"),
        ("lag", _lag(status, now)),
        *([("paused", _paused(status))] if status.paused_shards else []),
        ("records", _records(status)),
        *([("failures", _failures(status))] if status.failed else []),
        *([("rates", _rates(status))] if status.read_rate is not None else []),
        *(("before", _end(end)) for end in _earlier(status)),
    ]


def _name(run: LastRun | RunEnd) -> str:
    return run_name(run.host, run.pid, run.epoch)


def _rates(status: Status) -> str:
    said = f"{status.read_rate:,.1f} records read a second"
    if status.input_rate is None:
        return said
    unread = f", {count_noun(status.unread, 'record')} unread" if status.unread else ""
    return f"{said}; estimated: {status.input_rate:,.1f} a second come in{unread}"


def _earlier(status: Status) -> list[RunEnd]:
    """Return how the last runs before the newest one ended, the newest first."""
    run = status.run
    ends = [end for end in status.ends if run is None or end.epoch != run.epoch]
    return ends[: -_EARLIER - 1 : -1]


def _end(end: RunEnd) -> str:
    why = f": {end.why}" if end.why else ""
    return f"{_name(end)}, from {iso_time(end.since)} to {iso_time(end.at)}, {_ENDED[end.how]}{why}"


def summary_of(status: Status) -> str:
    """Return the status in one line, as monitoring plugins print it, with the numbers after a bar."""
    said = [one.sentence for one in status.wrong]
    lag = status.lag_ms
    what = "; ".join(said) or (
        f"lag {duration(lag) if lag is not None else 'unknown'}, {status.retrying:,} retrying, "
        f"{status.dead_lettered:,} dead-lettered"
    )
    # The first bar ends the text, for monitoring plugins.
    text = f"{status.level.value.upper()} - {status.application}: {what}".replace("|", "/")
    return f"{text} | {' '.join(_performance_data(status))}"


def _performance_data(status: Status) -> Iterator[str]:
    for key, figure in FIGURES.items():
        if figure.perf:
            value, unit = getattr(status, key), "ms" if key.endswith("_ms") else ""
            yield f"{figure.perf}={'U' if value is None else f'{value}{unit}'}"


def _lag(status: Status, now: int) -> str:
    seen = status.seen_at
    looked = f"; last looked {duration(max(0, now - seen))} ago, {iso_time(seen)}" if seen is not None else ""
    if status.lag_ms is None:
        what = " at what is not paused" if status.paused_shards else ""
        return f"unknown{looked}" if looked else f"unknown: nobody has looked yet{what}"
    left = status.retention_left_ms
    expires = f"; it expires in {duration(left)}" if status.lag_ms and left is not None else ""
    if not status.lag_ms:
        return f"none: everything is read{looked}"
    return f"{duration(status.lag_ms)}, the age of the oldest unread record{expires}{_caught_up(status)}"


def _paused(status: Status) -> str:
    age = status.paused_lag_ms
    said = "of unknown age" if age is None else f"{duration(age)} old" if age else "none"
    return f"{count_noun(status.paused_shards, 'shard')}, which the lag leaves out; the oldest unread record: {said}"


def _caught_up(status: Status) -> str:
    """Say when a query that is minutes behind has caught up."""
    growth, lag = status.lag_growth, status.lag_ms or 0
    if growth is None or lag < _BEHIND_MS:
        return ""
    if growth > -_STEADY:
        return "; it does not shrink"
    return f"; at the rate of the last minutes it is caught up in {duration(int(lag / -growth))}"


def _failures(status: Status) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in status.failed.items())
    return f"{kinds}, since the run began"


def _records(status: Status) -> str:
    parts = [f"{count_noun(status.read, 'record')} read"]
    for key, figure in FIGURES.items():
        number = getattr(status, key)
        if figure.said and (number or figure.perf):
            parts.append(f"{number:,} {figure.said}")
    return ", ".join(parts)
