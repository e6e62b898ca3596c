"""Storm's API on Spark: reliable per-record processing, bolts and topologies. Import from `kinesis_trident`."""
