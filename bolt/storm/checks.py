"""Checks of a topology's bolts and groupings when it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.types import StructType

from kinesis_trident.bolt.calls import check_call, check_pickled, check_runs, count_needed, refuse_not_run
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.api import (
    DEFAULT_STREAM,
    ArrowBolt,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputFieldsDeclarer,
    Tuple,
)
from kinesis_trident.bolt.storm.components import (
    AnyBolt,
    InputGrouping,
    Part,
    StreamId,
    title_of,
)
from kinesis_trident.bolt.storm.groupings import BoltDeclarer
from kinesis_trident.bolt.storm.streams import Declared
from kinesis_trident.bolt.storm.unsupported import check_configuration, snake
from kinesis_trident.spout.options.parsers import duration

TICK_INTERVAL = "tickInterval"
"""The configuration entry with the interval of tick tuples."""

_KINDS = (Bolt, BasicBolt, ArrowBolt)


def check_bolt(name: str, bolt: object, parallelism: object, fields: str = "") -> AnyBolt:
    """Return a bolt that can run.

    Raises:
        TopologyError: it is not a bolt, has no `execute` or cannot be pickled, `fields` are given for one that is no
            function, or `parallelism` is below 1.
    """
    if callable(bolt) and not isinstance(bolt, (type, *_KINDS)):
        bolt = FunctionBolt(name, bolt, fields)
    elif fields:
        msg = f"bolt {name!r}: `fields` are for a function. Name them in the bolt's class"
        raise TopologyError(msg)
    if isinstance(bolt, type):
        made = (
            f"Give an instance, {bolt.__name__}()"
            if issubclass(bolt, _KINDS)
            else "Derive it from one of them"
        )
        msg = f"bolt {name!r}: type is not a Bolt, a BasicBolt or an ArrowBolt: {bolt.__name__} is a class. {made}"
        raise TopologyError(msg)
    if not isinstance(bolt, _KINDS):
        what = type(bolt).__name__
        msg = f"bolt {name!r}: {what} is not a Bolt, a BasicBolt or an ArrowBolt. Derive it from one of them"
        raise TopologyError(msg)
    if any(type(bolt).execute is kind.execute for kind in _KINDS):
        msg = f"bolt {name!r}: {type(bolt).__name__} has no execute(). Define the method"
        raise TopologyError(msg)
    for method in ("declareOutputFields", "getComponentConfiguration", "get_component_configuration"):
        if hasattr(bolt, method):
            ours = snake(method) if method[0] == "d" else "set_bolt(...).add_configuration(name, value)"
            msg = f"bolt {name!r}: {type(bolt).__name__}.{method}() of Storm is never called here. Use {ours}"
            raise TopologyError(msg)
    _check_arguments(name, bolt)
    check_pickled(f"bolt {name!r}: {type(bolt).__name__}", bolt)
    if parallelism is not None and (type(parallelism) is not int or parallelism < 1):
        msg = f"bolt {name!r}: its parallelism is {parallelism!r}. Give a whole number of 1 or more"
        raise TopologyError(msg)
    return bolt


def configuration_of(
    declared: BoltDeclarer, common: Mapping[str, Any]
) -> tuple[dict[str, Any], float | None]:
    """Return a bolt's configuration, and the seconds between its tick tuples.

    Raises:
        TopologyError: an entry has no effect, cannot be pickled, or is no duration where one is expected; or an
            `ArrowBolt` is to get tick tuples.
    """
    what = f"bolt {declared.name!r}"
    check_configuration(what, declared.configuration)
    merged = {**common, **declared.configuration}
    check_pickled(f"{what}: its configuration", merged)
    given = merged.get(TICK_INTERVAL)
    if isinstance(declared.bolt, ArrowBolt):
        if TICK_INTERVAL in declared.configuration:
            msg = f"{what}: an ArrowBolt gets no tick tuples. Use a Bolt, or remove {TICK_INTERVAL}"
            raise TopologyError(msg)
        given = None
    if given is None:
        return merged, None
    try:
        return merged, duration(given)
    except (AttributeError, ValueError) as error:
        msg = f"{what}: {TICK_INTERVAL} is {given!r}. Give a duration with its unit, such as '10s' or '0s'"
        raise TopologyError(msg) from error


def check_groupings(declared: BoltDeclarer, parts: Mapping[str, Part]) -> None:
    """Check that a bolt's groupings fit the streams that it takes.

    Raises:
        TopologyError: one does not.
    """
    name = declared.name
    for grouping in declared.groupings:
        stream = find_stream(f"bolt {name!r}", grouping.source, parts)
        if stream.direct != grouping.move.is_direct:
            one, other = (
                ("is", "Take it with direct_grouping()")
                if stream.direct
                else ("is not", "Declare it with direct=True, or take it with another grouping")
            )
            msg = f"bolt {name!r} takes {grouping.title}, whose stream {one} direct. {other}"
            raise TopologyError(msg)
        if stream.direct:
            _check_alone(name, grouping, parts)
        _check_fields(name, grouping, stream.fields)
        if grouping.move.is_custom:
            _check_custom(name, grouping)
    _check_types(declared, parts)


def find_stream(taker: str, source: StreamId, parts: Mapping[str, Part]) -> Declared:
    """Return a stream that a component takes.

    Raises:
        TopologyError: it is not declared, or has no fields.
    """
    component, name = source
    streams = parts[component].streams
    stream = streams.get(name)
    if stream is None:
        what = "default stream" if name == DEFAULT_STREAM else f"stream {name!r}"
        msg = (
            f"{taker} takes the {what} of {component!r}, which that component does not declare; its streams are "
            f"{', '.join(streams)}. Name one of them"
        )
        raise TopologyError(msg)
    if not stream.fields.fields:
        msg = (
            f"{taker} takes tuples of {title_of(source)}, which emits no fields. Declare fields there, or take another "
            "component"
        )
        raise TopologyError(msg)
    return stream


def _check_alone(name: str, grouping: InputGrouping, parts: Mapping[str, Part]) -> None:
    other = next((one for one, part in parts.items() if grouping.source in part.sources), None)
    if other is not None:
        msg = (
            f"bolt {name!r} takes the direct stream {grouping.stream!r} of {grouping.component!r}, which "
            f"{other!r} takes too: task numbers are those of one bolt. Declare a second stream for {name!r}"
        )
        raise TopologyError(msg)


def _check_fields(name: str, grouping: InputGrouping, known: StructType) -> None:
    for field in grouping.move.fields:
        if field not in known.fieldNames():
            msg = (
                f"bolt {name!r} groups {grouping.title} by {field!r}, which that component does not emit; it emits "
                f"{', '.join(known.fieldNames())}"
            )
            raise TopologyError(msg)
        kind = known[field].dataType.simpleString()
        if "map<" in kind:
            msg = (
                f"bolt {name!r} groups {grouping.title} by {field!r}, {kind}: maps have no order, so Spark cannot "
                "group by them. Emit a field beside it, such as the map's items as sorted text, and group by that"
            )
            raise TopologyError(msg)


def _check_custom(name: str, grouping: InputGrouping) -> None:
    custom: Any = grouping.custom
    what = f"bolt {name!r}: the custom_grouping for {grouping.title}"
    if isinstance(custom, type):
        msg = f"{what} is the class {custom.__name__}. Give an instance, {custom.__name__}()"
        raise TopologyError(msg)
    for method, given in (
        ("prepare", ("context", "component", "stream", "tasks")),
        ("choose_tasks", ("task", "values")),
    ):
        function = getattr(custom, method, None)
        if not callable(function):
            msg = f"{what} has no {method}(). Define {method}({', '.join(given)}) in {type(custom).__name__}"
            raise TopologyError(msg)
        check_call(f"{what}: {type(custom).__name__}.{method}()", function, given)
        check_runs(f"{what}: {type(custom).__name__}.{method}()", function, yields=method == "choose_tasks")
    check_pickled(what, custom)


class FunctionBolt(BasicBolt):
    """A function of a tuple, or of a tuple and a collector, as a bolt."""

    def __init__(self, name: str, function: Callable[..., object], fields: str) -> None:
        self._function = function
        self._declared = fields
        check_runs(f"bolt {name!r}: its function", function)
        needed = count_needed(function)
        self._emits = needed == 2 or (needed is None and bool(fields))
        if needed not in (None, 1, 2):
            msg = (
                f"bolt {name!r}: its function takes neither (tup) nor (tup, collector). Give it one of these"
            )
            raise TopologyError(msg)
        if fields and not self._emits:
            msg = f"bolt {name!r}: its function takes (tup), so it emits nothing. Let it take (tup, collector) too"
            raise TopologyError(msg)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields that were given with the function."""
        if self._declared:
            declarer.declare(self._declared)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Call the function; a lambda returns something, which is nobody's."""
        returned = self._function(*((tup, collector) if self._emits else (tup,)))
        refuse_not_run("its function", returned)


def _check_arguments(name: str, bolt: AnyBolt) -> None:
    """Check that a bolt's methods accept their arguments."""
    methods: dict[str, tuple[str, ...]] = {
        "prepare": bolt._given if isinstance(bolt, Bolt) else ("context",),
        "execute": ("tup", "collector") if isinstance(bolt, BasicBolt) else ("tup",),
    }
    if not isinstance(bolt, ArrowBolt):
        methods |= {"declare_output_fields": ("declarer",), "cleanup": ()}
    for name_of_method, given in methods.items():
        what = f"bolt {name!r}: {type(bolt).__name__}.{name_of_method}()"
        method = getattr(bolt, name_of_method)
        check_call(what, method, given)
        check_runs(what, method)


def _check_types(declared: BoltDeclarer, parts: Mapping[str, Part]) -> None:
    """Check that the fields by which several components' tuples are grouped have the same types.

    Spark hashes an int differently from a bigint, so equal values would not meet in one task.
    """
    known: dict[int, tuple[str, str, str]] = {}
    for grouping in declared.groupings:
        if not grouping.move.keeps_keys:
            continue
        fields = parts[grouping.component].streams[grouping.stream].fields
        types = {one.name: one.dataType.simpleString() for one in fields}
        for place, name in enumerate(grouping.move.fields):
            here = grouping.title, name, types[name]
            first = known.setdefault(place, here)
            if first[2] != here[2]:
                msg = (
                    f"bolt {declared.name!r} groups {first[0]} by {first[1]!r}, {first[2]}, and {here[0]} by "
                    f"{here[1]!r}, {here[2]}: equal values meet in one task only if both have the same type. "
                    "Change the type of one"
                )
                raise TopologyError(msg)
