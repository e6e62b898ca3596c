"""The state in ZooKeeper: layout, nodes, store, ownership; and the embedded servers."""
