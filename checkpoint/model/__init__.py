"""What is stored in ZooKeeper: paths, node types, their encoding. Pure."""
