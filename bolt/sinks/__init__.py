"""Sinks that only the newest run of an application writes to, whenever an older one wakes."""
