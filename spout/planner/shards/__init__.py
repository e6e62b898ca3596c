"""The shards of a source: which there are, where they stand, and how they are listed, loaded and forgotten."""
