"""The shards of a source as its planning process knows them: lineage, listings, settling, counters."""
