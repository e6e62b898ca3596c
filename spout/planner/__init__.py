"""The planning process of the source: lineage, plans, settling, reconciliation with Spark."""
