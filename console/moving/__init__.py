"""Moves an application in from another system, and out to one: the positions of its shards."""
