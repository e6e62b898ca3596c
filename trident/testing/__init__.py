"""For tests of user code on Trident's interfaces."""

from trident.testing.conformance import BackingMapConformance

__all__ = ["BackingMapConformance"]
