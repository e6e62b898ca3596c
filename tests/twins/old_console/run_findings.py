"""The findings about a run and its batch. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kinesis_trident.checkpoint.model.run_status import run_name
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.finding import Finding, Level
from kinesis_trident.console.snapshot import ASKED_MS, Snapshot
from kinesis_trident.console.text import duration

_MINUTE = 60_000
_SILENT_MS = 5 * _MINUTE
_STUCK_MS = 10 * _MINUTE
_TAKEOVER_MS = 5 * _MINUTE
_TAKEOVERS_TOO_MANY = 3


def phase(snapshot: Snapshot, now: int) -> tuple[str, int | None]:
    """Return what the application does with its batch in hand, and since when (by ZooKeeper's clock)."""
    batch = snapshot.batch
    if batch is None:
        status = snapshot.status
        if snapshot.owner is None or status is None or status.epoch < snapshot.epoch:
            return "no batch in hand", None
        if now - status.time > ASKED_MS:
            return "no batch in hand; Spark asks for none", status.time
        if snapshot.is_drained(now):
            return "no batch in hand; has read everything that it was to read", None
        return "no batch in hand; waits for records", None
    if snapshot.finished:
        since = snapshot.finished_at
    elif snapshot.pins:
        since = snapshot.read_at
    else:
        since = snapshot.planned_at
    return snapshot.batch_state, since


def about_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Find the nodes that cannot be read."""
    line = snapshot.command("checkpoints", "backups")
    for problem in snapshot.problems:
        yield Finding(
            Level.CRITICAL,
            "corrupt-node",
            f"a node cannot be read: {problem.partition('. Nothing was changed')[0]}",
            "restore it from a backup of ZooKeeper, or read it with the release that wrote it; or write a copy "
            f"back: {line} lists them",
            commands=(line,),
        )


def about_run(snapshot: Snapshot, now: int) -> Iterator[Finding]:
    """Find what is wrong with the newest run: it has stopped, was taken over, is not asked, or has lost records."""
    app, status = snapshot.layout.application, snapshot.status
    recent = [note for at, note in snapshot.takeovers if now - at <= _TAKEOVER_MS]
    if recent:
        newest = recent[-1]
        many = len(recent) >= _TAKEOVERS_TOO_MANY
        yield Finding(
            Level.CRITICAL if many else Level.WARNING,
            "takeover",
            f"{count_noun(len(recent), 'run')} had to stop for a newer one in the last 5 minutes, the last for "
            f"{run_name(newest.by_host, newest.by_pid, newest.by_epoch)}",
            f"if that was no restart, two queries (or two load() of one) use the applicationName {app!r}: give each "
            "its own",
        )
    starts = snapshot.failed_starts
    if starts is not None:
        yield Finding(
            Level.CRITICAL,
            "start-fails",
            f"the query does not start: {count_noun(starts.count, 'start')} failed since "
            f"{duration(max(0, now - starts.since))} ago, the last {duration(max(0, now - starts.at))} ago on "
            f"{run_name(starts.host, starts.pid)}: {starts.why}",
            "look the error up in docs/runbook.md, and do what it says: the next start that succeeds ends this",
        )
    if snapshot.run is None or not snapshot.last_epoch:
        yield Finding(
            Level.WARNING,
            "never-started",
            "no query of this application has ever started here",
            "check the application's name, --zookeeper and --root, and start the query",
        )
        return
    run = snapshot.run
    end = snapshot.end(now)
    named = end if end is not None and run.tool else run
    epoch = snapshot.last_epoch
    where = run_name(named.host, named.pid, epoch) if end or not run.tool else f"epoch {epoch}"
    # A tool that has changed the state since is no run that has ended.
    after = f". {run.tool}: that was {duration(max(0, now - run.since))} ago" if run.tool else ""
    if end is not None:
        ago = f"{duration(max(0, now - end.at))} ago"
        is_meant = end.how in ("stopped", "finished")
        yield Finding(
            Level.NOTE if is_meant else Level.CRITICAL,
            "not-running",
            {
                "stopped": f"the last run, {where}, was stopped {ago}",
                "finished": f"the last run, {where}, has read everything and finished {ago}"
                + (", unless another source of its query is still read" if snapshot.owner else ""),
                "failed": f"the last run, {where}, failed {ago}: {end.why}",
                "interrupted": f"the last run, {where}, ended {ago} in the middle of a batch: {end.why}",
            }[end.how]
            + after,
            "start the query with the same checkpointLocation when it is to go on"
            if is_meant
            else "look the error up in docs/runbook.md, or in the driver's log if there is none, and start the query "
            "with the same checkpointLocation: it goes on where it stopped",
        )
    elif snapshot.owner is None:
        said = f", which was last heard {duration(now - status.time)} ago" if status is not None else ""
        yield Finding(
            Level.CRITICAL,
            "not-running",
            f"no run is connected to ZooKeeper; the last one was {where}{said}, and ended without a word: it was "
            f"killed, its machine was lost, or it does not reach ZooKeeper{after}",
            "look into its log for the reason, and start the query with the same checkpointLocation: it goes on "
            "where it stopped",
        )
    elif status is None or status.epoch < snapshot.epoch:
        if now - run.since > _SILENT_MS:
            yield Finding(
                Level.WARNING,
                "not-asked",
                f"the run {where} has started {duration(now - run.since)} ago, and has not looked at the stream yet",
                "look into its log: Spark may be replaying a batch, or wait for executors",
            )
    elif snapshot.batch is None and now - status.time > _SILENT_MS:
        yield Finding(
            Level.WARNING,
            "not-asked",
            f"Spark has asked the run {where} for nothing for {duration(now - status.time)}, and no batch is in hand: "
            "the query has stopped or waits for its trigger",
            "if its trigger is not as long as that, start the query again; kinesis_trident.stop(query) ends the "
            "process of a stopped one",
        )
    if status is not None and status.losses and status.epoch == snapshot.epoch:
        yield Finding(
            Level.CRITICAL,
            "data-loss",
            f"unread records were lost ({count_noun(status.losses, 'loss', 'losses')} since this run began), the last: "
            f"{status.lost}",
            "raise the stream's retention, or read faster: docs/guarantees.md",
        )


def about_share(snapshot: Snapshot, now: int) -> Iterator[Finding]:
    """Find a batch of the newest run of which most new records failed, if none has gone well since."""
    seen = snapshot.failing
    if seen is None or not seen.failed or seen.epoch < snapshot.epoch:
        return
    alike = (
        f"for one reason: {seen.reason}"
        if seen.same == seen.failed
        else f"{seen.same:,} of them for one reason: {seen.reason}"
    )
    yield Finding(
        Level.CRITICAL,
        "all-fail",
        f"{seen.failed:,} of {seen.records:,} new records failed, up to batch {seen.txid}, "
        f"{duration(max(0, now - seen.at))} ago, {alike}",
        "mend what they fail at, and start the query if it has stopped: such a batch fails as a whole, and none of its "
        "records uses up a delivery"
        if seen.whole
        else "take back what was deployed last, or mend what they fail at; stop the query until then, because each "
        "delivery uses up one of retryLimit. With maxFailedShare such a batch uses up none",
    )


def about_batch(snapshot: Snapshot, now: int) -> Iterator[Finding]:
    """Find a batch that has not moved for long, and the calls that it waits for."""
    if snapshot.batch is None or snapshot.owner is None:
        return
    for call in snapshot.slow:
        shards = snapshot.slow_shards(call)
        function = f"{call.function} in {call.operator}" if call.function else call.operator
        where = f" of {', '.join(shards)}" if shards else ""
        yield Finding(
            Level.WARNING,
            "slow-call",
            f"txid {snapshot.batch.plan.txid} waits for one call of {function}, which has not ended for "
            f"{duration(max(0, now - call.since))}, with {count_noun(sum(call.shards.values()), 'record')}{where}",
            "look in that function for an endless loop, a regular expression that backtracks or a request without a "
            "timeout; with the option recordTimeout a record with which a call does not end fails alone",
            shards=shards,
        )
    what, since = phase(snapshot, now)
    if since is None or now - since <= _STUCK_MS:
        return
    if snapshot.finished or set(snapshot.batch.plan.shards) <= set(snapshot.pins):
        remedy = (
            "if the query still runs, its functions or its sink take that long; if it has stopped, start it again: its "
            "next start settles the batch"
        )
    else:
        remedy = (
            "check in Spark's UI that executors run, and in their log that they reach Kinesis and ZooKeeper"
        )
    yield Finding(
        Level.WARNING, "slow-batch", f"{what}, and nothing has moved for {duration(now - since)}", remedy
    )
