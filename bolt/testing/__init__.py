"""Topologies of bolts run in this process, without Spark."""
