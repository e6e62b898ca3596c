"""Plays schedules: `python -m model FAMILY SEED COUNT`; FAMILY may be `all`. Says how to play a failing one again."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter

from model.families import FAMILIES
from model.story import play

_SHOWN = 5
"""Failing schedules of a family, after which it is left."""

_TRACED = 200


def main(family: str = "all", seed: str = "1", count: str = "200") -> int:
    """Play `count` schedules of each family from `seed` on: 1 if any of them fails."""
    failed = 0
    for name in FAMILIES if family == "all" else family.split(","):
        failed += _play(name, range(int(seed), int(seed) + int(count)))
    return int(failed > 0)


def _play(family: str, seeds: range) -> int:
    began, failed, stats = time.process_time(), 0, Counter[str]()
    played = 0
    for seed in seeds:
        told = play(family, seed)
        played += 1
        stats += told.world.stats
        if told.world.violations:
            failed += 1
            print(f"\n{told.again}\n  {told.world.violations[0]}")
            if os.environ.get("TRACE"):
                print("".join(f"    {name:16} {what}\n" for name, what in told.trace[-_TRACED:]))
            if failed == _SHOWN:
                break
    took = time.process_time() - began
    counted = ", ".join(f"{what} {many}" for what, many in sorted(stats.items()))
    print(
        f"{family}: {played} schedules, {failed} failed, {took:.1f} s of a processor; {counted}", flush=True
    )
    return failed


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    sys.exit(main(*sys.argv[1:]))
