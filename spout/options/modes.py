"""The options that have a fixed set of values: each set is written here, once, as a type."""

from __future__ import annotations

from typing import Literal

SpoutMode = Literal["opaque", "transactional", "nontransactional"]
AckMode = Literal["batch", "explicit"]
OnExhausted = Literal["deadLetter", "skip", "fail"]
ConsumerMode = Literal["polling", "efo"]
ConsumerLifecycle = Literal["managed", "external"]
ShardOrdering = Literal["parentFirst", "none"]
RetryOrder = Literal["none", "shard", "key"]
OnCheckpointMismatch = Literal["stop", "continue"]
LogFormat = Literal["text", "json"]
