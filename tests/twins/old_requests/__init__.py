"""What changed shards between two batches while it logged, and its shell: the twin of `step` and its units."""
