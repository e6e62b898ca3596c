"""What hostile answers come from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answering import Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running
