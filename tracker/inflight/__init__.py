"""In-flight records of one shard: what is delivered and not done, and the safe checkpoint below it."""
