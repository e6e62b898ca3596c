"""Connections to ZooKeeper, and requests that outlast a lost one."""
