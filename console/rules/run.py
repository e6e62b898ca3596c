"""The rules about a run and its batch. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.finding import Level
from kinesis_trident.console.rules.rule import Case, Rule
from kinesis_trident.console.text import duration

_MINUTE = 60_000
_SILENT_MS = 5 * _MINUTE
_STUCK_MS = 10 * _MINUTE
_TAKEOVER_MS = 5 * _MINUTE
_TAKEOVERS_TOO_MANY = 3
_ERROR = "look the error up in docs/runbook.md, "
_GO_ON = "and start the query with the same checkpointLocation: it goes on where it stopped"


def _taken_over(facts: HomeFacts) -> Iterator[Case]:
    recent = [note for at, note in facts.snapshot.takeovers if facts.now - at <= _TAKEOVER_MS]
    if recent:
        newest = recent[-1]
        yield Case(
            f"{count_noun(len(recent), 'run')} had to stop for a newer one in the last 5 minutes, the last for "
            f"{run_name(newest.by_host, newest.by_pid, newest.by_epoch)}",
            "if that was no restart, two queries (or two load() of one) use the applicationName "
            f"{facts.snapshot.layout.application!r}: give each its own",
            level=Level.CRITICAL if len(recent) >= _TAKEOVERS_TOO_MANY else None,
        )


def _fails_to_start(facts: HomeFacts) -> Iterator[Case]:
    starts = facts.snapshot.failed_starts
    if starts is not None:
        yield Case(
            f"the query does not start: {count_noun(starts.count, 'start')} failed since {facts.ago(starts.since)}, "
            f"the last {facts.ago(starts.at)} on {run_name(starts.host, starts.pid)}: {starts.why}",
            f"{_ERROR}and do what it says: the next start that succeeds ends this",
        )


def _never_started(facts: HomeFacts) -> Iterator[Case]:
    if facts.snapshot.last_run is None:
        yield Case(
            "no query of this application has ever started here",
            "check the application's name, --zookeeper and --root, and start the query",
        )


def _not_running(facts: HomeFacts) -> Iterator[Case]:
    snapshot, run, end = facts.snapshot, facts.snapshot.last_run, facts.snapshot.end(facts.now)
    if run is None:
        return
    # A tool that has changed the state since is no run that has ended.
    after = f". {run.tool}: that was {facts.ago(run.since)}" if run.tool else ""
    if end is not None:
        named = end if run.tool else run
        last = f"the last run, {run_name(named.host, named.pid, snapshot.last_epoch)},"
        ago = facts.ago(end.at)
        unless = ", unless another source of its query is still read" if snapshot.owner else ""
        said = {
            "stopped": f"was stopped {ago}",
            "finished": f"has finished {ago}{unless}: {end.why}"
            if end.why
            else f"has read everything and finished {ago}{unless}",
            "failed": f"failed {ago}: {end.why}",
            "interrupted": f"ended {ago} in the middle of a batch: {end.why}",
        }
        is_meant = end.how in ("stopped", "finished")
        yield Case(
            f"{last} {said[end.how]}{after}",
            "start the query with the same checkpointLocation when it is to go on"
            if is_meant
            else f"{_ERROR}or in the driver's log if there is none, {_GO_ON}",
            level=Level.NOTE if is_meant else None,
        )
    elif snapshot.owner is None:
        heard = f", which was last heard {facts.ago(snapshot.status.time)}" if snapshot.status else ""
        yield Case(
            f"no run is connected to ZooKeeper; the last one was {_name(facts)}{heard}, and ended without a word: it "
            f"was killed, its machine was lost, or it does not reach ZooKeeper{after}",
            f"look into its log for the reason, {_GO_ON}",
        )


def _not_asked(facts: HomeFacts) -> Iterator[Case]:
    snapshot, run, status = facts.snapshot, facts.snapshot.last_run, facts.snapshot.newest_status
    if run is None or snapshot.owner is None or snapshot.end(facts.now) is not None:
        return
    silent = facts.now - (status.time if status is not None else run.since)
    if silent <= _SILENT_MS:
        return
    if status is None:
        yield Case(
            f"the run {_name(facts)} has started {duration(silent)} ago, and has not looked at the stream yet",
            "look into its log: Spark may be replaying a batch, or wait for executors",
        )
    elif snapshot.batch is None:
        yield Case(
            f"Spark has asked the run {_name(facts)} for nothing for {duration(silent)}, and no batch is in hand: the "
            "query has stopped or waits for its trigger",
            "if its trigger is not as long as that, start the query again; kinesis_trident.stop(query) ends the "
            "process of a stopped one",
        )


def _lost(facts: HomeFacts) -> Iterator[Case]:
    status, snapshot = facts.snapshot.status, facts.snapshot
    if (
        status is not None
        and status.losses
        and status.epoch == snapshot.epoch
        and snapshot.last_run is not None
    ):
        losses = count_noun(status.losses, "loss", "losses")
        yield Case(
            f"unread records were lost ({losses} since this run began), the last: {status.lost}",
            "raise the stream's retention, or read faster: docs/guarantees.md",
        )


def _slow_calls(facts: HomeFacts) -> Iterator[Case]:
    snapshot = facts.snapshot
    if snapshot.batch is None or snapshot.owner is None:
        return
    for call in snapshot.slow:
        shards = snapshot.slow_shards(call)
        function = f"{call.function} in {call.operator}" if call.function else call.operator
        records = count_noun(sum(call.shards.values()), "record")
        where = f" of {', '.join(shards)}" if shards else ""
        yield Case(
            f"txid {snapshot.batch.plan.txid} waits for one call of {function}, which has not ended for "
            f"{facts.since(call.since)}, with {records}{where}",
            "look in that function for an endless loop, a regular expression that backtracks or a request without a "
            "timeout; with the option recordTimeout a record with which a call does not end fails alone",
            shards,
        )


def _slow_batch(facts: HomeFacts) -> Iterator[Case]:
    what, since = facts.snapshot.phase(facts.now)
    if facts.snapshot.batch is None or facts.snapshot.owner is None or since is None:
        return
    if facts.now - since > _STUCK_MS:
        yield Case(
            f"{what}, and nothing has moved for {duration(facts.now - since)}",
            "if the query still runs, its functions or its sink take that long; if it has stopped, start it again: its "
            "next start settles the batch"
            if facts.snapshot.is_pinned
            else "check in Spark's UI that executors run, and in their log that they reach Kinesis and ZooKeeper",
        )


def _name(facts: HomeFacts) -> str:
    """Return the name of the newest run, which has said nothing of its end."""
    run, epoch = facts.snapshot.last_run, facts.snapshot.last_epoch
    return f"epoch {epoch}" if run is None or run.tool else run_name(run.host, run.pid, epoch)


RUN = (
    Rule("takeover", Level.WARNING, _taken_over),
    Rule("start-fails", Level.CRITICAL, _fails_to_start),
    Rule("never-started", Level.WARNING, _never_started),
    Rule("not-running", Level.CRITICAL, _not_running),
    Rule("not-asked", Level.WARNING, _not_asked),
    Rule("data-loss", Level.CRITICAL, _lost),
    Rule("slow-call", Level.WARNING, _slow_calls),
    Rule("slow-batch", Level.WARNING, _slow_batch),
)
