"""Kinesis to Spark: options, shards, positions, fetching, batches, and the DataSource itself."""
