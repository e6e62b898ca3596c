"""Topologies over DataFrames other than the source."""
