"""The pairs of spout and state that are exactly-once: the matrix of the document "Trident State"."""

from __future__ import annotations

from kinesis_trident.spout.options.modes import SpoutMode
from kinesis_trident.trident.state import StateFactory

EXACTLY_ONCE = frozenset(
    {("transactional", "transactional"), ("transactional", "opaque"), ("opaque", "opaque")}
)
"""The pairs (spout, state) that count every record once."""


class GuaranteeWarning(UserWarning):
    """A state may count records more than once, or not at all, when a batch is replayed."""


def weakness(spout: SpoutMode, factory: StateFactory) -> str | None:
    """Return why a state is not exactly-once with a spout; None if it is."""
    if factory.kind is None:
        return (
            "the guarantee of the state is unknown. If it counts a replayed batch once, declare it in its "
            "factory: kind = StateType.OPAQUE or StateType.TRANSACTIONAL (from kinesis_trident.trident)"
        )
    if factory.weakness:
        return factory.weakness
    kind = factory.kind.name.lower()
    if (spout, kind) in EXACTLY_ONCE:
        return None
    if kind == "non_transactional":
        return (
            "a non-transactional state does not store its batch, so a replayed batch counts again. Use .opaque() "
            "or .transactional()"
        )
    if spout == "nontransactional":
        return (
            "with spout=nontransactional a replayed batch can hold other records, and a record can be in two "
            "batches. Use spout=opaque with .opaque()"
        )
    return (
        "with spout=opaque a replayed batch can hold fewer records, if some have expired, and a transactional "
        "state keeps the values of the first attempt. Use .opaque(), or spout=transactional"
    )
