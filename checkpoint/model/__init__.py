"""The data model in ZooKeeper: paths, node types and their encoding. Pure."""
