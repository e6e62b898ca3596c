"""Where failed records wait and end: retry ranges, the spool, dead letters."""
