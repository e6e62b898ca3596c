"""Verdicts before they were one value: mappings by shard, and what filtered, joined and compared them."""
