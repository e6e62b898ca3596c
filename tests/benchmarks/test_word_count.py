from __future__ import annotations

from benchmarks.word_count import ONE, Costs, median, row


def costs(batch: float, processor: float) -> Costs:
    return Costs({"triggerExecution": batch, "walCommit": batch / 10}, {"Spark's JVM": processor})


def test_ratios_are_those_of_neighbours() -> None:
    # The machine is half as fast in the second round, and something else disturbs one side of the third.
    ours = [costs(1.0, 2.0), costs(2.0, 4.0), costs(1.0, 2.0)]
    theirs = [costs(1.2, 3.0), costs(2.4, 6.0), costs(6.0, 30.0)]
    cells = row("Spark's", ONE, theirs, ours, bounded=True)
    assert cells == [
        "Spark's",
        "2.40 s",
        f"{ONE.words / 2400:,.0f} k",
        "1.20 x",
        "1.15 x",
        "6.00 s",
        "1.50 x",
    ]
    assert row("ours", ONE, ours, ours)[3:5] == ["1.00 x", ""]
    assert row("Spark's", ONE, ours, theirs, bounded=True)[4] == "1.15 x, missed"


def test_the_parts_of_a_batch_are_medians() -> None:
    found = median([costs(1.0, 2.0), costs(5.0, 3.0), Costs({"triggerExecution": 2.0}, {"Redis": 1.0})])
    assert found == Costs({"triggerExecution": 2.0, "walCommit": 0.1}, {"Spark's JVM": 2.0, "Redis": 0.0})
