"""The reports of tasks to the driver of a batch, used where there is no SparkContext."""

from __future__ import annotations

from contextlib import suppress

import xxhash

from kinesis_trident.checkpoint.errors import BatchMissingError
from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.nodes import ReportNode
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes, txid_of
from kinesis_trident.checkpoint.store.fencing import RACES, too_many_races
from kinesis_trident.checkpoint.zookeeper.operations import EXISTS, Check, Create, Refused

__all__ = ["ReportStore", "no_batch"]


class ReportStore:
    """Reports, keyed by the attempt at a batch."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._layout = nodes.layout

    def add(self, txid: int, attempt: str, node: ReportNode) -> None:
        """Leave a task's report for the driver's `attempt` at a batch; the same report again is the same node.

        Not fenced: a report names its run and plan, and the driver ignores those of others.

        Raises:
            BatchMissingError: the batch is settled, or was never planned.
        """
        folder, data = self._layout.reports_of(txid), encode(node)
        path = f"{folder}/{attempt}-{xxhash.xxh3_128_hexdigest(data)}"
        guard = Check(self._layout.batch_of(txid))
        for _ in range(RACES):
            try:
                self._session.commit([guard, Create(path, data)])
            except Refused as refused:
                if refused.kind is EXISTS:
                    return
                if refused.op is guard:
                    raise no_batch(self._layout.batch_of(txid)) from None
            else:
                return
            with suppress(Refused):
                self._session.commit([guard, Create(folder)])
        raise too_many_races(folder)

    def of_attempt(self, attempt: str) -> list[tuple[int, ReportNode]]:
        """Return the reports for one attempt at a batch: txid and node."""
        # Tasks wrote them, each in its own session: the records of a missing report would count as not judged.
        folders = self._nodes.children(self._layout.reports, fresh=True)
        listed = self._session.children(list(folders.values()))
        paths = {
            f"{folder}/{name}": txid_of(folder, txid)
            for (txid, folder), names in zip(folders.items(), listed, strict=True)
            for name in names or []
            if name.startswith(f"{attempt}-")
        }
        found = self._nodes.fetch_many(list(paths), ReportNode)
        return [
            (txid, stored.node)
            for txid, stored in zip(paths.values(), found, strict=True)
            if stored is not None
        ]


def no_batch(path: str) -> BatchMissingError:
    """Return the error for a batch whose plan does not exist."""
    return BatchMissingError(
        f"{path} does not exist: the batch is settled and its plan purged, or it was never planned. Rows of a "
        "settled batch are not read again. To read them, start a query with another applicationName and "
        "startingPosition"
    )
