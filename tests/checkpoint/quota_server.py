"""A ZooKeeper that enforces the quotas of its nodes."""

from __future__ import annotations

from kazoo.client import KazooClient

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

__all__ = ["MeanZooKeeper", "limit"]


class MeanZooKeeper(EmbeddedZooKeeper):
    """It enforces quotas; `most`: the bytes that it takes in a request."""

    most = 0x0FFFFF

    def _command(self) -> list[str]:
        command = super()._command()
        command.insert(1, f"-Djute.maxbuffer={self.most}")
        config = self._folder / "zoo.cfg"
        config.write_text(f"{config.read_text()}enforceQuota=true\n")
        return command


def limit(client: KazooClient, path: str, nodes: int | None = None) -> None:
    """Let a node have so many nodes below it, itself included; None for as many as it has."""
    quota = f"/zookeeper/quota{path}"
    if client.exists(f"{quota}/zookeeper_limits") is None:
        client.ensure_path(path)
        client.ensure_path(quota)
        # The server counts from the limits on, which it reads when they are made.
        client.create(f"{quota}/zookeeper_limits", b"count=-1,bytes=-1")
        client.create(f"{quota}/zookeeper_stats", b"count=1,bytes=0")
    if nodes is None:
        nodes = int(client.get(f"{quota}/zookeeper_stats")[0].split(b",")[0].removeprefix(b"count="))
    text = f"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit={nodes}"
    client.set(f"{quota}/zookeeper_limits", text.encode())
