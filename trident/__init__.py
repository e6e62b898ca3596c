"""Trident's API on Spark: states kept exactly once."""
