"""The records of a shard as entries of a list, as they were tracked before `OpenShard`: its twin."""
