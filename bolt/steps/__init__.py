"""Steps: functions that judge records or tuples one by one, as Arrow batches."""
