"""Storm's acker: one 64-bit value for each tuple tree, one call or many at a time."""
