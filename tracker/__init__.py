"""Pure bookkeeping: record positions, in-flight records, retry policy. It has no I/O and no clock."""
