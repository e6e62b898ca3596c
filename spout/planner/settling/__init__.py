"""How a batch that Spark has committed, and what other processes ask for, change the shards."""
