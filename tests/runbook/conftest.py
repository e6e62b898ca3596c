"""One scenario of the runbook, and the lives of a query that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Command, typed
from night import UNTRIED, Night

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper


@pytest.fixture
def night(request: pytest.FixtureRequest, app: str, tmp_path: Path) -> Iterator[Night]:
    """The entry that the test makes happen; it shows something, and tries a way out unless `UNTRIED` says why not."""
    title = request.function.entry
    names = {app: "orders-job", str(tmp_path): "/mnt/orders"}
    if "zookeeper" in request.fixturenames:
        names[request.getfixturevalue("zookeeper").hosts] = "zk1:2181"
    one = Night(title, names)
    yield one
    if request.node.stash.get(FAILED, False):
        return
    assert one.shown, f"{title} shows nothing"
    assert one.tried is (title not in UNTRIED), f"{title} tries no way out, or UNTRIED names it for nothing"


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note what failed: it need not have come to its end."""
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture
def command(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`command("status", app, ...) -> exit code, output, errors`, so wide that no sentence is broken."""
    monkeypatch.setenv("COLUMNS", "1000")
    return typed(zookeeper, capsys, monkeypatch)
