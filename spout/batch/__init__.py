"""Reads what is in the streams once, for `spark.read`."""
