"""Declares a bolt: the groupings by which it takes tuples."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.components import ALL, FIELDS, GLOBAL, LOCAL, SHUFFLE, AnyBolt, Grouping

__all__ = ["BoltDeclarer"]


@dataclass
class BoltDeclarer:
    """Returned by `set_bolt`, to choose the tuples that the bolt takes: call one grouping for each component."""

    name: str
    bolt: AnyBolt
    parallelism: int | None
    groupings: list[Grouping] = field(default_factory=list)

    def shuffle_grouping(self, component: str) -> BoltDeclarer:
        """Spread the component's tuples over the tasks."""
        return self._add(Grouping(component, SHUFFLE))

    def fields_grouping(self, component: str, *fields: str) -> BoltDeclarer:
        """Send tuples with the same values of these fields to the same task.

        Raises:
            TopologyError: there is no field.
        """
        if not fields or not all(isinstance(one, str) for one in fields):
            msg = (
                f"bolt {self.name!r}: fields_grouping({component!r}) needs at least one field, each a name. Call "
                f"it as fields_grouping({component!r}, 'word', 'country')"
            )
            raise TopologyError(msg)
        return self._add(Grouping(component, FIELDS, fields))

    def all_grouping(self, component: str) -> BoltDeclarer:
        """Send each of the component's tuples to every task."""
        return self._add(Grouping(component, ALL))

    def global_grouping(self, component: str) -> BoltDeclarer:
        """Send all tuples of the component to one task."""
        return self._add(Grouping(component, GLOBAL))

    def local_or_shuffle_grouping(self, component: str) -> BoltDeclarer:
        """Keep tuples where they are made; the bolt has as many tasks as the component."""
        return self._add(Grouping(component, LOCAL))

    def _add(self, grouping: Grouping) -> BoltDeclarer:
        if any(one.component == grouping.component for one in self.groupings):
            msg = (
                f"bolt {self.name!r} already takes tuples of {grouping.component!r}. Give each component one "
                "grouping"
            )
            raise TopologyError(msg)
        self.groupings.append(grouping)
        return self
