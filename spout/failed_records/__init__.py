"""Failed records: retry ranges, the spool, dead letters."""
