"""The columns and the rows of the matrix "spout versus state", in the order of the document "Trident State"."""

from __future__ import annotations

from kinesis_trident.spout.options.modes import SpoutMode

__all__ = ["SPOUTS", "STATES"]

SPOUTS: tuple[SpoutMode, ...] = ("nontransactional", "transactional", "opaque")
"""The values of the source's option `spout`."""

STATES = ("non_transactional", "transactional", "opaque")
"""The kinds of state, named like the methods that make them."""
