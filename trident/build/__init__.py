"""The construction of a topology: the graph, its fields, its checks."""
