"""The five ways in which a person on call looks at a query, each as a person or a program uses it."""

from __future__ import annotations

import html
import io
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from kinesis_trident.console.cli import main

__all__ = ["WAYS", "Sight", "Ways"]

WAYS = ("status", "page", "check", "metrics", "alert")

_FINDING = re.compile(r"^ *(critical|unknown|warning|note) +(.+)$", re.MULTILINE)
_BANNER = re.compile(r'<li class="(\w+)" data-key="([\w-]+) \d+">.*?<p class="sentence">(.*?)</p>', re.DOTALL)
_SAMPLE = re.compile(r"^kinesis_trident_findings\{(.*)\} ", re.MULTILINE)
_LEVELS = ("note", "warning", "critical", "unknown")


@dataclass(frozen=True)
class Sight:
    """One thing that is wrong, as one way says it.

    Attributes:
        level: note, warning, critical or unknown.
        code: of the finding; empty where the way does not say it.
        said: the sentence; empty where the way has none.
    """

    level: str
    code: str = ""
    said: str = ""


@dataclass
class Ways:
    """Looks at applications.

    Args:
        zookeeper: the servers, as the option `--zookeeper`.
        page: the URL of the web page.
        exporter: that of the metrics.
        prometheus: that of Prometheus.
    """

    zookeeper: str
    page: str
    exporter: str
    prometheus: str
    _samples: str = field(default="", init=False)
    _alerts: list[dict[str, str]] = field(default_factory=list, init=False)

    def refresh(self, applications: Sequence[str]) -> None:
        """Fetch what is one answer for all applications, the metrics and the alerts; have the page look at each."""
        for one in applications:
            self._page_of(one)
        self._samples = _fetch(self.exporter)
        answer = json.loads(_fetch(f"{self.prometheus}/api/v1/alerts"))
        self._alerts = [one["labels"] for one in answer["data"]["alerts"] if one["state"] == "firing"]

    def look(self, application: str) -> Mapping[str, list[Sight]]:
        """Return what each way says of an application."""
        seen = {
            "status": self._status,
            "page": self._page,
            "check": self._check,
            "metrics": self._metrics,
            "alert": self._alert,
        }
        return {way: list(see(application)) for way, see in seen.items()}

    def command(self, *words: str) -> tuple[int, str]:
        """Run a command of the command line: its exit code, and what it prints."""
        printed, code = io.StringIO(), 0
        with redirect_stdout(printed):
            try:
                main([*words, "--zookeeper", self.zookeeper])
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return code, printed.getvalue()

    def status(self, application: str) -> dict[str, Any]:
        """Return the status as a program reads it."""
        line = self.command("status", application, "--json")[1].partition("\n")[0]
        status: dict[str, Any] = json.loads(line)
        return status

    def _status(self, application: str) -> Iterator[Sight]:
        for level, said in _FINDING.findall(self.command("status", application)[1]):
            yield Sight(level, said=said)

    def _page(self, application: str) -> Iterator[Sight]:
        for level, code, said in _BANNER.findall(self._page_of(application)):
            yield Sight(level, code, html.unescape(said))

    def _page_of(self, application: str) -> str:
        """Return the page, which looks every two seconds as long as somebody watches."""
        return _fetch(f"{self.page}/app?name={urllib.parse.quote(application)}")

    def _check(self, application: str) -> Iterator[Sight]:
        code, printed = self.command("check", application)
        yield Sight(_LEVELS[code], said=printed.partition("\n")[0])

    def _metrics(self, application: str) -> Iterator[Sight]:
        for labels in _SAMPLE.findall(self._samples):
            found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if found["application"] == application:
                yield Sight(found["level"], found["code"])

    def _alert(self, application: str) -> Iterator[Sight]:
        for labels in self._alerts:
            # An alert about Prometheus' own metrics is about everybody.
            if labels.get("application", application) == application:
                yield Sight(labels["severity"], labels.get("code", labels["alertname"]))


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text
