"""Declares a bolt: the groupings by which it takes tuples, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.bolt.names import check_fields
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, CustomGrouping
from kinesis_trident.bolt.storm.components import AnyBolt, InputGrouping
from kinesis_trident.bolt.storm.unsupported import StormNames


@dataclass
class BoltDeclarer(StormNames):
    """Returned by `set_bolt`, to choose the tuples that the bolt takes: call one grouping for each stream.

    `stream` names a stream that the component declares; without it the grouping takes the default stream.
    """

    _storm: ClassVar[tuple[str, ...]] = ("BoltDeclarer",)

    name: str
    bolt: AnyBolt
    parallelism: int | None
    groupings: list[InputGrouping] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Spread the tuples over the tasks."""
        return self._add(component, self._move(Grouping.SHUFFLE), stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Leave it to the library where the tuples go: as in Storm, this is `shuffle_grouping`."""
        return self.shuffle_grouping(component, stream)

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send tuples with the same values of these fields to the same task.

        Raises:
            TopologyError: there is no field.
        """
        return self._add_keyed("fields_grouping", Grouping.FIELDS, component, fields, stream)

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send tuples with the same values of these fields to one of two tasks: the one that got fewer tuples so far.

        Raises:
            TopologyError: there is no field.
        """
        return self._add_keyed("partial_key_grouping", Grouping.PARTIAL_KEY, component, fields, stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to every task."""
        return self._add(component, self._move(Grouping.ALL), stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send all tuples to one task."""
        return self._add(component, self._move(Grouping.GLOBAL), stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Keep tuples where they are made; the bolt has as many tasks as the component."""
        return self._add(component, self._move(Grouping.LOCAL), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each tuple to the task that the component named in `emit_direct`."""
        return self._add(component, self._move(Grouping.DIRECT), stream)

    def custom_grouping(
        self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send each tuple to the tasks that `grouping` chooses.

        Raises:
            TopologyError: `grouping` has not the methods `prepare` and `choose_tasks`, or cannot be pickled.
        """
        return self._add(component, self._move(Grouping.CUSTOM), stream, grouping)

    def add_configuration(self, name: str, value: object) -> BoltDeclarer:
        """Set an entry of the bolt's configuration, which `prepare` gets in its context.

        `tickInterval`, such as "10s", sends a tick tuple to each task in the first micro-batch, and in each that comes
        so much later; "0s" means every micro-batch.
        """
        return self.add_configurations({name: value})

    def add_configurations(self, configuration: Mapping[str, object]) -> BoltDeclarer:
        """Set several entries of the bolt's configuration."""
        self.configuration |= configuration
        return self

    def _add_keyed(
        self, method: str, kind: Grouping, component: str, fields: tuple[str, ...], stream: str
    ) -> BoltDeclarer:
        if not fields or not all(isinstance(one, str) for one in fields):
            msg = (
                f"bolt {self.name!r}: {method}({component!r}) needs at least one field, each a name. Call it as "
                f"{method}({component!r}, 'word', 'country')"
            )
            raise TopologyError(msg)
        check_fields(f"bolt {self.name!r}: {method}({component!r})", fields)
        return self._add(component, self._move(kind, fields), stream)

    def _move(self, grouping: Grouping, fields: tuple[str, ...] = ()) -> Move:
        return Move(grouping, fields, self.parallelism)

    def _add(
        self, component: str, move: Move, stream: str, custom: CustomGrouping | None = None
    ) -> BoltDeclarer:
        grouping = InputGrouping(component, move, stream, custom)
        if any(one.source == grouping.source for one in self.groupings):
            msg = (
                f"bolt {self.name!r} already takes tuples of {grouping.title}. Give each stream one grouping"
            )
            raise TopologyError(msg)
        self.groupings.append(grouping)
        return self
