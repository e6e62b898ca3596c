"""Helpers for tests of user code on Trident's interfaces."""

from kinesis_trident.trident.testing.conformance import BackingMapConformance

__all__ = ["BackingMapConformance"]
