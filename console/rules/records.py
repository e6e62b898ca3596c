"""The rules about records that failed, and about nodes that nobody can read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.message_id import MessageId
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.dead_letter_replay import KEPT_NOWHERE, find_listed, has_letters, replay_words
from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.finding import FRESH_MS, Level
from kinesis_trident.console.rules.rule import Case, Rule
from kinesis_trident.tracker.failure import Kind
from kinesis_trident.tracker.records import Run

_ASKED_FOR = "asked for again by hand"


def _unreadable(facts: HomeFacts) -> Iterator[Case]:
    for problem in facts.snapshot.problems:
        yield Case(
            f"a node cannot be read: {problem.partition('. Nothing was changed')[0]}",
            "restore it from a backup of ZooKeeper, or read it with the release that wrote it; or write a copy back: "
            f"{facts.line('checkpoints', 'backups')} lists them",
        )


def _all_fail(facts: HomeFacts) -> Iterator[Case]:
    """Find a batch of the newest run of which most new records failed, if none has gone well since."""
    seen = facts.snapshot.failing
    if seen is not None and seen.failed and seen.epoch >= facts.snapshot.epoch:
        some = "" if seen.same == seen.failed else f"{seen.same:,} of them "
        yield Case(
            f"{seen.failed:,} of {seen.records:,} new records failed, up to batch {seen.txid}, {facts.ago(seen.at)}, "
            f"{some}for one reason: {seen.reason}",
            "mend what they fail at, and start the query if it has stopped: such a batch fails as a whole, and none of "
            "its records uses up a delivery"
            if seen.whole
            else "take back what was deployed last, or mend what they fail at; stop the query until then, because each "
            "delivery uses up one of retryLimit. With maxFailedShare such a batch uses up none",
        )


def _held(facts: HomeFacts) -> Iterator[Case]:
    runs = _waiting(facts, held=True)
    if runs:
        yield Case(
            f"bolts hold {_count(runs)} that wait for others: {_reason(runs)}",
            "nothing, if they come; a record fails when it was held for messageTimeout",
        )


def _retrying(facts: HomeFacts) -> Iterator[Case]:
    runs = _waiting(facts, held=False)
    if runs:
        failed = [run for run in runs if run.kind is not Kind.BEHIND]
        said = f"{_count(failed, 'failed record')} will be delivered again"
        if failed:
            said += f"; most often: {_reason(failed)}"
        if len(failed) < len(runs):
            behind = _count([run for run in runs if run.kind is Kind.BEHIND], "record")
            said += f"; {behind} that follow with their keys, and have not failed, come after them"
        yield Case(said, f"{facts.line('retries')} shows all reasons")


def _exhausted(facts: HomeFacts) -> Iterator[Case]:
    snapshot = facts.snapshot
    dead = {shard: node.dead for shard, node in snapshot.inflight.items() if node.dead}
    if not dead:
        return
    runs = [run for some in dead.values() for run in some]
    first = MessageId.of_run(snapshot.layout.key_of(next(iter(dead))).source, runs[0])
    failed, why = f"{_count(runs)} failed too often, and", f"the first is {first}: {_reason(runs)}"
    if snapshot.owner is not None:
        said = f"{failed} will be dead-lettered with the next batch; {why}"
        yield Case(said, f"{facts.line('dead-letters')} lists it then", facts.labels(dead), Level.NOTE)
    else:
        line = facts.line("dead-letters", "replay", options=["--exhausted"])
        yield Case(
            f"{failed} stopped the query if onExhausted=fail; {why}",
            f"set deadLetter, or onExhausted=skip, and start again; or fix the cause, run {line}, and start again",
            facts.labels(dead),
        )


def _dead_letters(facts: HomeFacts) -> Iterator[Case]:
    nodes = facts.snapshot.dead_letters.values()
    letters = sum(node.count for node in nodes)
    if not letters:
        return
    replayed, left = letters - sum(node.left for node in nodes), [node for node in nodes if node.left]
    fresh = [letter for node in left for letter in node.last if facts.now - letter.time <= FRESH_MS]
    newest = max(fresh, key=lambda letter: letter.time, default=None)
    ways = _replays(facts)
    deliver = f"{' and '.join(ways)} {'delivers' if len(ways) == 1 else 'deliver'} them again"
    unnamed = find_listed([node for node in left if not has_letters(node)])[1]
    yield Case(
        f"{count_noun(letters, 'record was', 'records were')} dead-lettered or skipped so far"
        + (f", of which {count_noun(replayed, 'was', 'were')} delivered again" if replayed else "")
        + (f", the last {facts.ago(newest.time)}: {newest.reason}" if newest else ""),
        f"{facts.line('dead-letters')} lists them with their reasons"
        + (f"; once what they fail at is mended, {deliver}" if ways else "")
        + (f"; of {count_noun(unnamed, 'record')} nothing has the name: {KEPT_NOWHERE}" if unnamed else ""),
        level=None if newest else Level.NOTE,
    )


def _rejected(facts: HomeFacts) -> Iterator[Case]:
    rejected = facts.snapshot.rejected
    if rejected:
        requests = count_noun(len(rejected), "request")
        yield Case(
            f"{requests} of other processes could not be read, the first is at {rejected[0]}",
            "tell their author, and delete the node: the records are as if nobody had asked",
        )


def _replays(facts: HomeFacts) -> list[str]:
    """Return the lines that deliver again the letters that are left: as they are now, listed or in their folders."""
    ways = {
        tuple(replay_words(node))
        for shard, node in facts.snapshot.dead_letters.items()
        if node.left and shard.rpartition("/")[2] != PAST_RETENTION
    }
    ways.discard(())
    # What the list of one shard does not name stands in its folder, with the letters of the others.
    ways = {way for way in ways if way[0] == "--from"} or ways
    return [facts.line("dead-letters", "replay", options=way) for way in sorted(ways)]


def _waiting(facts: HomeFacts, *, held: bool) -> list[Run]:
    nodes = facts.snapshot.inflight.values()
    return [run for node in nodes for run in node.waiting if run.is_held is held]


def _count(runs: Sequence[Run], noun: str = "record") -> str:
    return count_noun(sum(run.count for run in runs), noun)


def _reason(runs: Sequence[Run]) -> str:
    """Return the reason of most records of some runs."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.failures[-1].reason if run.failures else _ASKED_FOR] += run.count
    ((reason, _),) = counts.most_common(1)
    return reason


RECORDS = (
    Rule("corrupt-node", Level.CRITICAL, _unreadable),
    Rule("all-fail", Level.CRITICAL, _all_fail),
    Rule("held", Level.NOTE, _held),
    Rule("retrying", Level.NOTE, _retrying),
    Rule("exhausted", Level.CRITICAL, _exhausted),
    Rule("dead-letters", Level.WARNING, _dead_letters),
    Rule("rejected-requests", Level.WARNING, _rejected),
)
