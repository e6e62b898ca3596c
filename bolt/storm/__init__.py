"""Storm's API: bolts, collectors, groupings and topologies."""
