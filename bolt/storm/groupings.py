"""What a topology is declared with: a spout, and the groupings by which a bolt takes tuples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.components import ALL, FIELDS, GLOBAL, LOCAL, SHUFFLE, AnyBolt, Grouping
from kinesis_trident.spout.spark_plan import check_names

__all__ = ["BoltDeclarer", "KinesisSpout", "string_scheme"]


def string_scheme(field_name: str = "str") -> dict[str, str]:
    """The record's data as text, in one field: Storm's StringScheme."""
    return {field_name: "CAST(data AS STRING)"}


class KinesisSpout:
    """The source as a spout. `options` are those of the format `kinesis-trident`; None stands for the default.

    `scheme` adds fields to the columns of the source: names, each with an SQL expression over the columns.
    `tracking=False`: its tuples are unanchored, so what fails is not replayed.

    Raises:
        OptionsError: there is no option of a name.
        TopologyError: `scheme` is no dict, or `tracking` neither True nor False.
    """

    def __init__(
        self, *, scheme: Mapping[str, str] | None = None, tracking: bool = True, **options: object
    ) -> None:
        given: tuple[object, object] = tracking, scheme
        if not isinstance(given[0], bool) or not isinstance(given[1], Mapping | None):
            msg = (
                f"KinesisSpout: tracking={tracking!r}, scheme={scheme!r}; expected True or False, and a dict of field "
                "names with SQL expressions, such as string_scheme('line')"
            )
            raise TopologyError(msg)
        self.options = {
            name.replace("__", "."): _text(value) for name, value in options.items() if value is not None
        }
        check_names(self.options)
        self.scheme = dict(scheme or {})
        self.tracking = tracking


@dataclass
class BoltDeclarer:
    """What `set_bolt` returns, to say which tuples the bolt takes: call one grouping for each component."""

    name: str
    bolt: AnyBolt
    parallelism: int | None
    groupings: list[Grouping] = field(default_factory=list)

    def shuffle_grouping(self, component: str) -> BoltDeclarer:
        """Spread the component's tuples over the tasks."""
        return self._add(Grouping(component, SHUFFLE))

    def fields_grouping(self, component: str, *fields: str) -> BoltDeclarer:
        """Tuples with the same values of these fields come to the same task.

        Raises:
            TopologyError: no field is given.
        """
        if not fields or not all(isinstance(one, str) for one in fields):
            msg = (
                f"bolt {self.name!r}: fields_grouping({component!r}) needs at least one field, each a name: "
                f"fields_grouping({component!r}, 'word', 'country')"
            )
            raise TopologyError(msg)
        return self._add(Grouping(component, FIELDS, fields))

    def all_grouping(self, component: str) -> BoltDeclarer:
        """Every task gets each of the component's tuples."""
        return self._add(Grouping(component, ALL))

    def global_grouping(self, component: str) -> BoltDeclarer:
        """All tuples of the component come to one task."""
        return self._add(Grouping(component, GLOBAL))

    def local_or_shuffle_grouping(self, component: str) -> BoltDeclarer:
        """Tuples stay where they are made; there are as many tasks as there are of the component."""
        return self._add(Grouping(component, LOCAL))

    def _add(self, grouping: Grouping) -> BoltDeclarer:
        if any(one.component == grouping.component for one in self.groupings):
            msg = f"bolt {self.name!r} takes tuples of {grouping.component!r} already: give each component one grouping"
            raise TopologyError(msg)
        self.groupings.append(grouping)
        return self


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
