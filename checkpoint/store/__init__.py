"""The state of one application in ZooKeeper, typed and fenced."""
