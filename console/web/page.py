"""The values that the templates show, from looks at applications. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinesis_trident.console.lag import shard_lags, sight_of
from kinesis_trident.console.snapshot import Snapshot
from kinesis_trident.console.status import status_of
from kinesis_trident.console.text import counted, duration
from kinesis_trident.console.views import VIEWS, Row
from kinesis_trident.console.web.drawings import Box, draw_curve, draw_lineage, draw_phases
from kinesis_trident.console.web.history import BatchTimes, History
from kinesis_trident.console.web.watcher import Look, Part

__all__ = ["application_values", "list_values"]

_ROWS = 100
_DRAWN = 120
_PHASES = ("reading", "processing", "settling")


def list_values(looks: Mapping[str, Look], now: int) -> list[Row]:
    """Return a row for each application, or for each of its homes, those in trouble first."""
    rows: list[Row] = []
    for name, look in sorted(looks.items()):
        if not look.parts:
            rows.append({"application": name, "level": "unknown", "wrong": look.problem, "streams": []})
        for part in look.parts:
            status = status_of(part.snapshot, now)
            wrong = [one["sentence"] for one in status["findings"] if one["level"] != "note"]
            rows.append(
                status | {"wrong": look.problem or (wrong[0] if wrong else ""), "more": len(wrong) - 1}
            )
    order = {"critical": 0, "unknown": 1, "warning": 2}
    rows.sort(key=lambda row: (order.get(row["level"], 3), row["application"]))
    return rows


def application_values(look: Look, now: int, previews: Mapping[str, str]) -> Row:
    """Return everything that the page of an application shows."""
    return {
        "application": look.application,
        "at": look.at,
        "problem": look.problem,
        "parts": [_part(part, now, previews) for part in look.parts],
    }


def _part(part: Part, now: int, previews: Mapping[str, str]) -> Row:
    snapshot, history = part.snapshot, part.history
    status = status_of(snapshot, now)
    newest = history.samples[-1] if history.samples else None
    letters = VIEWS["dead-letters"](snapshot, now)
    return {
        "status": status,
        "wrong": [one for one in status["findings"] if one["level"] != "note"],
        "notes": [one for one in status["findings"] if one["level"] == "note"],
        "read_rate": newest.read_rate if newest else None,
        "fail_rate": newest.fail_rate if newest else None,
        "curves": _curves(history),
        "lineage": _lineage(snapshot, now),
        "shards": _cut(_shards(snapshot, now)),
        "batches": _batches(history, now),
        "unseen": sum(batch.planned_at is None for batch in history.batches),
        "reasons": _cut(list(VIEWS["retry-reasons"](snapshot, now).rows)),
        "retries": _cut(_retries(snapshot, now)),
        "inflight": _cut(
            [row for row in VIEWS["inflight"](snapshot, now).rows if row["state"] not in ("waiting", "dead")]
        ),
        "letters": _cut(
            [row | {"preview": previews.get(row["message_id"])} for row in letters.rows],
        ),
        "letters_note": letters.note,
        "takeovers": [{"at": at, "note": note} for at, note in reversed(snapshot.takeovers)],
        "changes": part.changes[:20],
    }


def _curves(history: History) -> list[Row]:
    # A copy: another thread may add a sample at any time.
    samples = list(history.samples)
    return [
        {"title": title, "svg": draw_curve(points, title, unit, kind)}
        for title, unit, kind, points in (
            ("Lag", "ms", "lag", [(one.at, one.lag_ms) for one in samples]),
            ("Records read", "/s", "read", [(one.at, one.read_rate) for one in samples]),
            ("Records failed", "/s", "fail", [(one.at, one.fail_rate) for one in samples]),
        )
    ]


def _lineage(snapshot: Snapshot, now: int) -> Row:
    """Return the picture of the lineage; of very many shards those that are still read, and the newest of the rest."""
    lags = shard_lags(snapshot, now)
    names = sorted(snapshot.shards, key=lambda name: (snapshot.shards[name].state == "drained", name))
    drawn = sorted(names[:_DRAWN])
    boxes = []
    for name in drawn:
        lineage, lag = snapshot.shards[name], lags[name].ms if name in lags else None
        said = "unknown" if lag is None else duration(lag) if lag else "none"
        line = "done" if lineage.state == "drained" else f"lag {said}"
        parents = tuple(map(snapshot.label_of, lineage.parents))
        boxes.append(Box(snapshot.label_of(name), lineage.state, line, parents))
    left = len(names) - len(drawn)
    return {
        "svg": draw_lineage(boxes) if boxes else None,
        "note": f"{counted(left, 'drained shard')} more, not drawn" if left else "",
    }


def _shards(snapshot: Snapshot, now: int) -> list[Row]:
    rows = VIEWS["checkpoints"](snapshot, now).rows
    found = []
    for name, row in zip(snapshot.shard_ids, rows, strict=True):
        sight = sight_of(snapshot, name)
        refused = now - sight.refused if sight.refused is not None else None
        found.append(row | {"refused_ms": refused, "why": sight.why})
    # Drained shards have nothing more to say.
    return sorted(found, key=lambda row: row["state"] == "drained")


def _retries(snapshot: Snapshot, now: int) -> list[Row]:
    """Return the rows of waiting runs, with the id of the last record of each, which names the run in a change."""
    rows = []
    for row in VIEWS["retries"](snapshot, now).rows:
        source, _, records = row["message_id"].partition(":")
        rows.append(row | {"id": f"{source}:{records.rpartition('..')[2]}"})
    return rows


def _batches(history: History, now: int) -> list[Row]:
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
                "state": _state(batch),
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


def _cut(rows: list[Any]) -> Row:
    """Return at most so many rows as a person reads, and how many there are more."""
    return {"rows": rows[:_ROWS], "more": max(0, len(rows) - _ROWS)}
