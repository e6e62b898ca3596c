"""The lag of a shard: it is never a comfort."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import CheckpointNode
from kinesis_trident.checkpoint.model.run_status import FRESH_MS, Lag, Seen, StatusNode, lag_of, total_lag

NOW = 1_700_000_000_000
HOUR = 3_600_000


def node(behind: int = 0, arrival: int | None = None, seen: int | None = None) -> CheckpointNode:
    return CheckpointNode(
        checkpoint="5",
        txid=7,
        position="AFTER_SEQUENCE_NUMBER 5",
        behind_ms=behind,
        arrival=arrival,
        seen=seen,
    )


@pytest.mark.parametrize(
    ("checkpoint", "seen", "lag"),
    [
        # Nobody has ever looked.
        (None, Seen(), Lag(None)),
        # The tip was seen a moment ago, by a turn or by a look, or an hour ago.
        (node(seen=NOW - 1_000), Seen(), Lag(0, NOW - 1_000)),
        (None, Seen(seen=NOW - 1_000), Lag(0, NOW - 1_000)),
        (node(seen=NOW - HOUR), Seen(), Lag(None, NOW - HOUR)),
        (None, Seen(seen=NOW - HOUR), Lag(None, NOW - HOUR)),
        (node(seen=NOW - HOUR), Seen(seen=NOW), Lag(0, NOW)),
        # A turn ended behind the tip: the oldest unread record is about as old as the last one that was read.
        (node(behind=4_200, arrival=NOW - 4_200), Seen(), Lag(4_200)),
        (node(behind=4_200, arrival=NOW - HOUR), Seen(), Lag(HOUR)),
        (node(behind=4_200, seen=NOW - HOUR), Seen(), Lag(4_200, NOW - HOUR)),
        # A look after it saw the tip, or the record that waits.
        (node(behind=4_200, arrival=NOW - HOUR), Seen(seen=NOW), Lag(0, NOW)),
        (node(behind=4_200, arrival=NOW - HOUR), Seen(NOW, arrival=NOW - 10), Lag(10, NOW)),
        # Throttled: what was seen before ages.
        (
            node(seen=NOW - HOUR),
            Seen(NOW - HOUR, refused=NOW - HOUR, why="throttled"),
            Lag(None, NOW - HOUR),
        ),
        (None, Seen(NOW - HOUR, NOW - 2 * HOUR, NOW - HOUR, "throttled"), Lag(2 * HOUR, NOW - HOUR)),
    ],
)
def test_the_lag_is_known_grows_or_is_unknown(
    checkpoint: CheckpointNode | None, seen: Seen, lag: Lag
) -> None:
    assert lag_of(checkpoint, seen, NOW) == lag
    assert lag_of(checkpoint, seen, NOW, drained=True).ms == 0


times = st.one_of(st.none(), st.integers(NOW - 100 * HOUR, NOW))


@given(
    st.one_of(st.none(), st.builds(node, st.integers(0, HOUR), times, times)),
    st.builds(Seen, times, times, times, st.just("throttled")),
    st.integers(0, 100 * HOUR),
)
def test_time_alone_never_makes_a_lag_smaller(
    checkpoint: CheckpointNode | None, seen: Seen, passed: int
) -> None:
    before, after = lag_of(checkpoint, seen, NOW), lag_of(checkpoint, seen, NOW + passed)
    assert before.seen_at == after.seen_at
    if after.ms is not None:
        assert before.ms is not None
        assert after.ms >= before.ms
    if passed > FRESH_MS:
        # Nothing says for ever that nothing is unread.
        assert after.ms != 0 or seen.arrival is not None


@given(st.lists(st.one_of(st.none(), st.integers(0, HOUR))))
def test_all_shards_together_lag_as_the_worst_unless_an_unknown_one_may_be_worse(
    lags: list[int | None],
) -> None:
    total = total_lag({str(at): Lag(ms) for at, ms in enumerate(lags)})
    known = max((ms for ms in lags if ms is not None), default=0)
    assert total in (known, None)
    assert (total is None) == (None in lags and known <= FRESH_MS)


def test_the_node_is_read_as_it_is_written() -> None:
    status = StatusNode(epoch=3, time=NOW, seen=NOW, shards={"s": Seen(NOW, None, NOW, "throttled")})
    assert decode("/status", encode(status), StatusNode) == status
    assert status.seen_of("s").why == "throttled"
    assert status.seen_of("t") == Seen(NOW)
