"""Pure bookkeeping: record positions, in-flight records, retry policy. No I/O and no clock of its own."""
