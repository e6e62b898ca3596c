from __future__ import annotations

from benchmarks.processors import Rate
from benchmarks.source import CEILING, LOOP, OURS, rate_rows


def test_rates_are_medians_and_their_ratios_those_of_neighbours() -> None:
    # In the last round the machine had half of its processors.
    rounds = [
        {LOOP: Rate(10e3, 10e3), OURS: Rate(ours, 50e3), CEILING: Rate(400e3, 100e3)}
        for ours in (190e3, 210e3)
    ] + [{LOOP: Rate(5e3, 10e3), OURS: Rate(104e3, 50e3), CEILING: Rate(200e3, 100e3)}]
    loop, ours, ceiling = rate_rows(200, rounds)
    assert loop == ["200 B: boto3, get_records in a loop", "10 k", "1.0 x", "", "", "10 k", "1.0 x"]
    assert ours == ["200 B: through Spark to a noop sink", "190 k", "20.8 x", "52%", "50%", "50 k", "5.0 x"]
    assert ceiling[2:] == ["40.0 x", "100%", "", "100 k", "10.0 x"]
    assert rate_rows(200, [one | {OURS: Rate(99e3, 50e3)} for one in rounds])[1][3:5] == [
        "25%",
        "50%, missed",
    ]
