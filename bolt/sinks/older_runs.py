"""Refuses to write what belongs to an older run, or to an older batch, than what a sink holds."""

from __future__ import annotations

from kinesis_trident.bolt.errors import StaleBatchError
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.checkpoint.errors import FencedError


def refuse_older(outcomes: Outcomes, sink: str, mark: str, epoch: int, txid: int) -> None:
    """Refuse a run that is older than what the sink's mark says of the last writer, or a batch that is.

    Raises:
        FencedError: a run of a higher epoch has written to the sink.
        StaleBatchError: this application has written a later batch to it.
    """
    lost = (
        "If this is the application's newest run, its data in ZooKeeper was lost or restored from an older copy, "
        "or another query has the same applicationName: use a new applicationName"
    )
    if epoch > outcomes.epoch:
        msg = (
            f"a newer run of application {outcomes.application!r} has written to {sink}: {mark} has epoch "
            f"{epoch}, this run has epoch {outcomes.epoch} and writes nothing. {lost}"
        )
        raise FencedError(msg, outcomes.epoch, epoch)
    if txid > outcomes.txid:
        msg = (
            f"application {outcomes.application!r} has written batch {txid} to {sink}, so batch {outcomes.txid} "
            f"is not written: it would replace another one of this number. {lost}"
        )
        raise StaleBatchError(msg)
