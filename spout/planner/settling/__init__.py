"""The changes of the shards by a batch that Spark has committed, and by what other processes ask for."""
