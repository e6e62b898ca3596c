"""The values that the templates show, from looks at applications. Pure: the time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kinesis_trident.checkpoint.model.facts import ShardFacts
from kinesis_trident.common.visible_text import count_noun
from kinesis_trident.console.dead_letter_replay import has_letters
from kinesis_trident.console.figures import FIGURES, HomeFacts, HomeFigures
from kinesis_trident.console.finding import Level
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.text import lag_text
from kinesis_trident.console.views import VIEWS, Row, inflight, retries
from kinesis_trident.console.web.drawings import Box, draw_curve, draw_lineage, draw_phases
from kinesis_trident.console.web.history import BatchTimes, History
from kinesis_trident.console.web.watcher import ApplicationView, HomeView

_ROWS = 100
_DRAWN = 120
_PHASES = ("reading", "processing", "settling")


def list_values(looks: Mapping[str, ApplicationView]) -> list[Row]:
    """Return a row for each application, or for each of its homes, those in trouble first.

    Each look is judged at its own time: an application that nobody watches is not looked at for a while, and is no
    less healthy for that.
    """
    rows: list[Row] = []
    for name, look in sorted(looks.items()):
        if not look.parts:
            rows.append({"application": name, "level": "unknown", "wrong": look.problem, "streams": []})
        for part in look.parts:
            wrong = [one.sentence for one in part.status.wrong]
            row = msgspec.to_builtins(part.status) | {
                "wrong": wrong[0] if wrong else "",
                "more": len(wrong) - 1,
                "numbers": [tile for tile in _tiles(part.status) if tile["perf"]],
            }
            # What was seen before says nothing of an application that cannot be read any more.
            rows.append(row | ({"level": "unknown", "wrong": look.problem} if look.problem else {}))
    rows.sort(key=lambda row: (Level[row["level"].upper()].rank, row["application"]))
    return rows


def application_values(look: ApplicationView) -> Row:
    """Return everything that the page of an application shows, but the payloads; of a large one this takes a while."""
    return {
        "application": look.application,
        "at": look.at,
        "problem": look.problem,
        "parts": [_part(part, look.at) for part in look.parts],
    }


def _part(part: HomeView, now: int) -> Row:
    snapshot, history, status = part.snapshot, part.history, msgspec.to_builtins(part.status)
    facts = HomeFacts(snapshot, now).shards
    shards = _shards(snapshot, facts, now)
    waiting = sum(len(held.waiting) for held in snapshot.inflight.values())
    newest = history.samples[-1] if history.samples else None
    letters = VIEWS["dead-letters"](snapshot, now)
    return {
        "status": status,
        "tiles": list(_tiles(part.status)),
        "command": snapshot.command,
        "wrong": [one for one in status["findings"] if one["level"] != "note"],
        "notes": [one for one in status["findings"] if one["level"] == "note"],
        "read_rate": newest.read_rate if newest else None,
        "fail_rate": newest.fail_rate if newest else None,
        "curves": _curves(history),
        "lineage": _lineage(snapshot, facts, [row["name"] for row in shards]),
        "shards": _cut(shards),
        "batches": _batches(history, now, snapshot),
        "unseen": sum(batch.planned_at is None for batch in history.batches),
        "reasons": _cut(VIEWS["retry-reasons"](snapshot, now).rows),
        "retries": _cut(retries(snapshot, now, _ROWS).rows, waiting),
        "inflight": _cut(inflight(snapshot, now, failed=False).rows),
        "letters": _cut(letters.rows),
        "letters_note": letters.note,
        "in_letters": {
            record.message_id
            for node in snapshot.dead_letters.values()
            if has_letters(node)
            for record in node.last
        },
        "takeovers": [{"at": at, "note": note} for at, note in reversed(snapshot.takeovers)],
        "changes": part.changes[:20],
    }


def _tiles(figures: HomeFigures) -> Iterator[Row]:
    for key, figure in FIGURES.items():
        if figure.tile is not None:
            (title, about, alarm), value = figure.tile, getattr(figures, key)
            text = f"{value:,}" if figure.text is None else figure.text(figures)
            yield {
                "title": title,
                "value": text,
                "about": about,
                "kind": alarm if value else "",
                "perf": figure.perf,
            }


def _curves(history: History) -> list[Row]:
    # A copy: another thread may add a sample at any time.
    samples = list(history.samples)
    return [
        {"title": title, "svg": draw_curve(points, title, unit, kind)}
        for title, unit, kind, points in (
            ("Lag", "ms", "lag", [(one.at, one.lag_ms) for one in samples]),
            ("Shards apart", "ms", "skew", [(one.at, one.skew_ms) for one in samples]),
            ("Records read", "/s", "read", [(one.at, one.read_rate) for one in samples]),
            ("Records failed", "/s", "fail", [(one.at, one.fail_rate) for one in samples]),
        )
    ]


def _lineage(snapshot: Snapshot, facts: Mapping[str, ShardFacts], worst_first: Sequence[str]) -> Row:
    """Return the picture of the lineage; of very many shards the worst, then the others that are still read."""
    names = [name for name in worst_first if name in snapshot.shards]
    drawn = sorted(names[:_DRAWN])
    boxes = []
    for name in drawn:
        lineage, lag = snapshot.shards[name], facts[name].figures.lag_ms
        line = "done" if lineage.state == "drained" else f"lag {lag_text(lag)}"
        parents = tuple(map(snapshot.label_of, lineage.parents))
        boxes.append(Box(snapshot.label_of(name), lineage.state, line, parents))
    left = Counter(snapshot.shards[name].state for name in names[_DRAWN:])
    more = " and ".join(count_noun(count, f"{state} shard") for state, count in sorted(left.items()))
    return {"svg": draw_lineage(boxes) if boxes else None, "note": f"{more} more, not drawn" if more else ""}


def _shards(snapshot: Snapshot, facts: Mapping[str, ShardFacts], now: int) -> list[Row]:
    rows = VIEWS["checkpoints"](snapshot, now).rows
    found = []
    for name, row in zip(snapshot.shard_ids, rows, strict=True):
        seen = facts[name].seen
        refused = now - seen.refused if seen.refused is not None else None
        found.append(row | {"name": name, "refused_ms": refused, "why": seen.why})
    return sorted(found, key=_health)


def _health(row: Row) -> tuple[bool, bool, bool, int, int]:
    """Order the rows of shards: refused or blocked ones first, then by lag; drained ones have nothing more to say."""
    lag = row["lag_ms"]
    fine = row["refused_ms"] is None and not row["blocked"]
    return row["state"] == "drained", fine, lag is not None, -(lag or 0), -row["retrying"]


def _batches(history: History, now: int, snapshot: Snapshot) -> list[Row]:
    runs = snapshot.owner is not None
    if not runs:
        # What nobody works on takes no longer than until its run was heard last.
        end, status = snapshot.end(now), snapshot.status
        now = end.at if end is not None else status.time if status is not None else now
    batches = [batch for batch in history.batches if batch.planned_at is not None]
    known = [_phases(batch, now) for batch in batches]
    longest = max((sum(took for _, took in phases) for phases in known), default=1)
    rows = []
    for batch, phases in zip(batches, known, strict=True):
        took = dict(phases)
        rows.append(
            {
                "txid": batch.txid,
                "records": batch.records,
                "again": batch.again,
                "state": _state(batch) if runs or batch.done else f"stopped while {_state(batch)}",
                "planned_at": batch.planned_at,
                "phases": [(name, took.get(name)) for name in _PHASES],
                "took": sum(took.values()) if batch.settled_at or not batch.done else None,
                "bar": draw_phases(phases, longest),
            }
        )
    return rows


def _phases(batch: BatchTimes, now: int) -> list[tuple[str, int]]:
    """Return the phases of a batch with their milliseconds; the one that goes on lasts until now.

    Phases whose border nobody saw are one, `unseen`.
    """
    found: list[tuple[str, int]] = []
    waiting: list[str] = []
    begin = batch.planned_at or 0
    for name, end in zip(_PHASES, (batch.read_at, batch.finished_at, batch.settled_at), strict=True):
        waiting.append(name)
        if end is not None:
            found.append((name if len(waiting) == 1 else "unseen", max(0, end - begin)))
            begin, waiting = end, []
    if waiting and not batch.done:
        found.append((waiting[0], max(0, now - begin)))
    return found


def _state(batch: BatchTimes) -> str:
    if batch.done:
        return "settled"
    if batch.finished_at is not None:
        return "settling"
    return "processing" if batch.read_at is not None else "reading"


def _cut(rows: Sequence[Any], count: int | None = None) -> Row:
    """Return at most so many rows as a person reads, and how many there are more; `count` is that of all."""
    return {"rows": rows[:_ROWS], "more": max(0, (len(rows) if count is None else count) - _ROWS)}
