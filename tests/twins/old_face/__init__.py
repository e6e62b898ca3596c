"""The tracker of single records and arrays as it was: entries in a list, which failures split."""
