"""The programs of somebody on call, each as a process: the web page, the exporter, and Prometheus with our alerts."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import yaml

from kinesis_trident.checkpoint.embedded import EmbeddedServer

__all__ = ["Console", "Prometheus"]

_DOCS = Path(__file__).parents[2] / "docs"
_LOOPBACK = "127.0.0.1"


class Console(EmbeddedServer):
    """A command of `kinesis-trident` that serves; `words` name it, with `{port}` where its port belongs.

    Args:
        words: of the command line.
        path: what it answers when it is ready.
    """

    name = "console"

    def __init__(self, words: Sequence[str], path: str) -> None:
        super().__init__(None, 0)
        self._words = words
        self._path = path

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{_LOOPBACK}:{self.port}"

    def _command(self) -> list[str]:
        # The installed script may be that of another checkout.
        code = "from kinesis_trident.console.cli import main; main()"
        return [sys.executable, "-c", code, *(word.format(port=self.port) for word in self._words)]

    def _answers(self) -> bool:
        with urllib.request.urlopen(self.url + self._path, timeout=5) as answer:
            return bool(answer.status == 200)


class Prometheus(EmbeddedServer):
    """Prometheus with docs/alerts.yml, as docs/metrics.md configures it; `exporter` is the URL that it scrapes."""

    name = "prometheus"

    def __init__(self, program: Path, exporter: str) -> None:
        super().__init__(None, 0)
        self._program = program
        self._exporter = exporter

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{_LOOPBACK}:{self.port}"

    def _command(self) -> list[str]:
        shown = re.search(r"```yaml\n(.*?)```", (_DOCS / "metrics.md").read_text(), re.DOTALL)
        assert shown is not None
        config = yaml.safe_load(shown[1])
        (scrape,) = config["scrape_configs"]
        scrape["static_configs"] = [{"targets": [self._exporter.partition("://")[2]]}]
        config["rule_files"] = [str(_DOCS / "alerts.yml")]
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        return [
            str(self._program),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={_LOOPBACK}:{self.port}",
        ]

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
