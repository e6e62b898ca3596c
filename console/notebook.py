"""The status of an application for a notebook: `status("orders-job", {"zookeeper.hosts": ...})`."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.scope import open_scope
from kinesis_trident.console.status import Status, lines_of, status_of
from kinesis_trident.console.target import ConsoleError, Target
from kinesis_trident.console.text import now_ms
from kinesis_trident.spout.options.source import zookeeper_options


def status(application: str, options: Mapping[str, str], *, stream: str | None = None) -> ApplicationStatus:
    """Look how an application is: the last cell of a notebook shows it as a table.

        status("orders-job", {"zookeeper.hosts": "localhost:2181"})

    Args:
        application: the option `applicationName` of the query.
        options: the options of the source; only those for ZooKeeper are used.
        stream: one of the application's streams; all by default.

    Raises:
        OptionsError: an unknown option.
        ConsoleError: `zookeeper.hosts` is missing, or there is no such application or stream.
        CheckpointError: ZooKeeper cannot be reached, or refuses the login.
    """
    where = zookeeper_options(application, options)
    if not where.zookeeper_hosts:
        msg = "status needs the option zookeeper.hosts. Set it as in the query"
        raise ConsoleError(msg)
    now = now_ms()
    with open_scope(Target(where.zookeeper, where.zookeeper_root, application, stream)) as scope:
        return ApplicationStatus([status_of(snapshot, now) for snapshot in scope.snapshots()], now)


class ApplicationStatus:
    """The state of an application at the time of a look.

    Attributes:
        parts: one for each stream, or for all that are read together, as `kinesis-trident status APP --json` prints it.
        time: of the look, in epoch milliseconds.
    """

    def __init__(self, seen: Sequence[Status], time: int) -> None:
        self.parts: list[dict[str, Any]] = [msgspec.json.decode(msgspec.json.encode(one)) for one in seen]
        self.time = time
        self._seen = seen

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Return what is wrong, with what to do."""
        return [one for part in self.parts for one in part["findings"]]

    def __repr__(self) -> str:
        """Return the same as text."""
        lines = []
        for part in self._seen:
            lines += [f"{label:<12}{make_visible(text)}" for label, text in lines_of(part, self.time)]
            for one in part.findings:
                lines.append(f"{one.level.value:<12}{make_visible(one.sentence)}")
                lines.append(f"{'':<12}-> {make_visible(one.remedy)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(_table(part, self.time) for part in self._seen)


def _table(part: Status, now: int) -> str:
    rows = [f"<tr><th>{_text(label)}</th><td>{_text(text)}</td></tr>" for label, text in lines_of(part, now)]
    for one in part.findings:
        rows.append(
            f'<tr><th style="color:{one.level.color}">{_text(one.level.value)}</th>'
            f"<td>{_text(one.sentence)}<br><i>{_text(one.remedy)}</i></td></tr>"
        )
    border = part.level.color
    return f'<table style="border-left:4px solid {border};text-align:left"><tbody>{"".join(rows)}</tbody></table>'


def _text(text: str) -> str:
    return html.escape(make_visible(text))
