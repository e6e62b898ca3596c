"""The tip of each shard: when to look there, what a look finds, and what is read ahead of the tasks."""
