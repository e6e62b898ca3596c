"""Real jobs under a schedule of faults that a seed draws: `python -m chaos SEED COUNT` (docs/reliability.md)."""
