"""The watchers of each change of the shards: the log and the counters."""
