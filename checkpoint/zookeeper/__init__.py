"""Connections to ZooKeeper, and requests that survive a lost connection."""
