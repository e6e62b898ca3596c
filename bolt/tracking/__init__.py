"""Tracking of one batch: anchors, operators, their reports, coverage."""
