"""The rules by which findings are found, in the order in which those of one severity are told."""

from __future__ import annotations

from kinesis_trident.console.figures import HomeFacts
from kinesis_trident.console.finding import Finding
from kinesis_trident.console.rules.records import RECORDS
from kinesis_trident.console.rules.run import RUN
from kinesis_trident.console.rules.shards import SHARDS

# A record that stopped the query says more than that the query has stopped.
RULES = (*RECORDS, *RUN, *SHARDS)


def find(facts: HomeFacts) -> list[Finding]:
    """Return what is wrong, the worst first."""
    return sorted((one for rule in RULES for one in rule.find(facts)), key=lambda one: one.level.rank)
