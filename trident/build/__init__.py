"""Building a topology: the graph, its fields, its checks."""
