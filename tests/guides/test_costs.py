"""The figures of docs/costs.md are those of its formulas, and of the pace that the source keeps."""

from __future__ import annotations

import re

from doc_page import ROOT

from kinesis_trident.spout.options.source import TABLE
from kinesis_trident.spout.planner.pace import IDLE_MS, WARM_GAP_MS

MONTH = 30 * 24 * 3600
SUBSCRIPTIONS = MONTH // 300
CALLS = 5
"""A second of a shard, as Kinesis allows."""


def test_calls_and_bytes_follow_from_the_formulas() -> None:
    text = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    assert f"{MONTH:,} s" in text
    (interval,) = (option.default for option in TABLE if option.key == "idlePollInterval")
    assert (interval, IDLE_MS) == ("400ms", 400)
    rows = {
        int(shards.replace(",", "")): figures.split(" | ")
        for shards, figures in re.findall(
            r"^\| ([\d,]+) \| (.+) \|$", text.split("## Bytes")[0], re.MULTILINE
        )
    }
    assert rows.keys() == {1, 10, 100, 1000}
    for shards, figures in rows.items():
        a_shard = (
            MONTH * 1000 // IDLE_MS,
            MONTH // 10,
            MONTH * CALLS,
            MONTH * 1000 // WARM_GAP_MS + SUBSCRIPTIONS,
        )
        assert figures == [f"{shards * calls:,}" for calls in a_shard]
    sizes = re.findall(r"^\| ([\d,]+) \| ([\d,]+) GiB \|$", text, re.MULTILINE)
    assert sizes == [(f"{shards:,}", f"{shards * MONTH / 1024:,.0f}") for shards in rows]
