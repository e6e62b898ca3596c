"""Plays schedules: `python -m chaos SEED COUNT`. Says how to play a failing one again."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec
from job_environment import job_environment

from benchmarks.report import publish, show
from chaos.play import Outcome, begin_to_play, play_seed
from chaos.report import PAGE, line_of, section_of
from chaos.schedule import draw


def main() -> int:
    """Play the schedules of so many seeds: 1 if any of them fails."""
    parser = argparse.ArgumentParser(description="Play schedules of faults on real jobs and servers.")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument(
        "--workers", type=int, default=1, help="schedules at a time, each on servers of its own"
    )
    parser.add_argument("--outcomes", type=Path, help="keeps what comes out; what it has is not played again")
    parser.add_argument("--write", action="store_true", help=f"write the figures into {PAGE.name}")
    given = parser.parse_args()
    os.environ.update(job_environment(os.environ))
    seeds = range(given.seed, given.seed + given.count)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcomes = _kept(given.outcomes, seeds)
    left = [seed for seed in seeds if seed not in {one.schedule.seed for one in outcomes}]
    for outcome in _outcomes(left, folder, given.workers):
        print(line_of(outcome), flush=True)
        outcomes.append(outcome)
        if given.outcomes:
            with given.outcomes.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
    failed = any(outcome.broken for outcome in outcomes)
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    section = section_of(outcomes)
    if given.write:
        publish(section, PAGE)
    else:
        show(section)
    return int(failed)


def _kept(file: Path | None, seeds: Sequence[int]) -> list[Outcome]:
    """Return the outcomes that a file has of these seeds, as far as the seeds draw the same schedules today."""
    if file is None or not file.exists():
        return []
    kept = [msgspec.json.decode(line, type=Outcome) for line in file.read_bytes().splitlines()]
    return [one for one in kept if one.schedule.seed in seeds and one.schedule == draw(one.schedule.seed)]


def _outcomes(seeds: Sequence[int], folder: Path, workers: int) -> Iterator[Outcome]:
    """Yield what comes of each schedule, as they end."""
    # A worker keeps its servers from one schedule to the next; they end with it.
    with ProcessPoolExecutor(workers, get_context("spawn"), begin_to_play, (folder,)) as pool:
        for task in as_completed([pool.submit(play_seed, seed) for seed in seeds]):
            yield task.result()


if __name__ == "__main__":
    sys.exit(main())
