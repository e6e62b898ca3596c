"""A stream of the shared local Kinesis, as the commands that move applications name it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.checkpoint.model.layout import Layout

__all__ = ["Command", "Source", "at"]

Command = Callable[..., tuple[int, str, str]]
"""A command as typed: its exit code, output and errors."""


@dataclass(frozen=True)
class Source:
    """A stream, when it was created, and the options that name it."""

    stream: str
    created: int
    options: Sequence[str]

    def layout(self, app: str) -> Layout:
        return Layout("/kinesis-trident", app, self.stream, self.created)


def at(server: EmbeddedKinesis) -> list[str]:
    return ["--region", "us-east-1", "--endpoint", server.endpoint_url]
