"""Checks of a topology when it is built: guarantees, factories and operations, places of states, storable values.

After the verdict of a batch it would be too late: the batch would fail, and each replay of it, too. Which pairs of
spout and state are exactly-once says the matrix of Storm's document "Trident State".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.options.modes import SpoutMode
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.build.nodes import (
    PersistentAggregateNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    UpdateNode,
)
from kinesis_trident.trident.build.user_code import check_operation
from kinesis_trident.trident.state import StateFactory, StateType
from kinesis_trident.trident.steps.tuple_steps import FiniteStep
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.serializers import Serializer


def check_kind(operation: str, factory: StateFactory, kind: DataType) -> None:
    """Check that a state can store values of a type; a user's own serializer is not checked.

    Raises:
        TopologyError: the state cannot store them.
    """
    serializer = _serializer(factory)
    if serializer is not None and not serializer.takes_type(kind):
        msg = (
            f"{operation}: its values are {kind.simpleString()}, which serializer={serializer.option!r} cannot store. "
            "Cast the field before (timestamp to bigint or string, a map to one with string keys), or give the state "
            "a kinesis_trident.trident.Serializer that takes it"
        )
        raise TopologyError(msg)


def with_storable_values(
    operation: str, factory: StateFactory, kind: DataType, node: TopologyNode, read: tuple[str, ...]
) -> TopologyNode:
    """Keep the tuples whose value may come into a total: with JSON, NaN and infinity fail their records."""
    fractions = isinstance(kind, FloatType | DoubleType) and len(read) == 1
    serializer = _serializer(factory)
    if not (fractions and node.tracked and serializer is not None and serializer.fails_nan):
        return node
    return RowNode(operation, node.schema, (node,), FiniteStep(operation, read, arrow_schema(node.schema)))


def _serializer(factory: StateFactory) -> Serializer | None:
    return factory.serializer if isinstance(factory, MapStateFactory) else None


def check_places(
    parts: Mapping[SpoutNode, Sequence[TopologyNode]], static: Sequence[StateFactory] = ()
) -> None:
    """Check that no two updates go to one place. A stream's global aggregates may share one, with own `globalKey`s.

    Raises:
        TopologyError: two updates go to one place, or one to that of a static state.
    """
    updates = {
        node: spout for spout, nodes in parts.items() for node in nodes if isinstance(node, UpdateNode)
    }
    for node in updates:
        if node.factory.place in [factory.place for factory in static]:
            msg = (
                f"start: {node.operation} updates the {type(node.factory).__name__} that is given to new_static_state: "
                "a replay would find its own batch there and could look up something else. Query the TridentState "
                f"that {node.operation.partition('(')[0]} returns"
            )
            raise TopologyError(msg)
    taken: dict[Hashable, UpdateNode] = {}
    global_keys: dict[Hashable, tuple[SpoutNode, set[str]]] = {}
    for node, spout in updates.items():
        place = node.factory.place
        first = taken.setdefault(place, node)
        own = _global_key(node)
        if first is node:
            if own is not None:
                global_keys[place] = (spout, {own})
            continue
        known = global_keys.get(place)
        if own is None or known is None or known[0] is not spout or own in known[1]:
            msg = (
                f"start: {first.operation} and {node.operation} update one state, a {type(node.factory).__name__} "
                "in one place: in each batch the second would mistake the first one's writes for its own. Give "
                "each a factory with its own keyPrefix, table or folder"
            )
            raise TopologyError(msg)
        known[1].add(own)
    for node in updates:
        for other in updates:
            _check_prefixes(node, other)


def _check_prefixes(node: UpdateNode, other: UpdateNode) -> None:
    """Check that the keys of one update are not among those of another; the mark of the owner shows other addresses."""
    shorter, longer = node.factory, other.factory
    if not isinstance(shorter, MapStateFactory) or not isinstance(longer, MapStateFactory):
        return
    if _global_key(node) is None and shorter.contains(longer, longer.key_prefix + (_global_key(other) or "")):
        msg = (
            f"start: the keys of {other.operation} begin with {longer.key_prefix!r}, and those of {node.operation} "
            f"with {shorter.key_prefix!r}, in one store: a key of the second can be one of the first. Give one "
            "of them a keyPrefix that does not begin with the other's. If their keys never meet, set the option "
            "acceptOwner of the first one: if its text does not name the second one, the next error says "
            "how that is written"
        )
        raise TopologyError(msg)


def _global_key(node: UpdateNode) -> str | None:
    """Return the only key that a node updates, if it is known."""
    if (
        isinstance(node, PersistentAggregateNode)
        and not node.keys
        and isinstance(node.factory, MapStateFactory)
    ):
        return node.factory.global_key
    return None


def check_given(given: object, kind: type, operation: str, hint: str = "") -> None:
    """Check that an argument is an object of a class.

    Raises:
        TopologyError: it is another object, or the class itself; `hint` is the advice in the message.
    """
    if isinstance(given, kind):
        return
    if isinstance(given, type):
        what = f"the class {given.__name__}"
        hint = f"give an object: {given.__name__}()" if issubclass(given, kind) else hint
    elif callable(given):
        what = f"the function {name_of(given)}"
    else:
        what = repr(given)
    msg = f"{operation}: takes a {kind.__name__}, not {what}{f'; {hint}' if hint else ''}"
    raise TopologyError(msg)


def check_factory(factory: object, operation: str) -> None:
    """Check that an argument makes states and declares a valid kind.

    Raises:
        TopologyError: it is not a factory, its kind is not valid, or `make_state` cannot be called as tasks do.
    """
    check_given(
        factory,
        StateFactory,
        operation,
        "a state is given as what makes it: RedisState.opaque('redis://...')",
    )
    kind = getattr(factory, "kind", None)
    if kind is not None and not isinstance(kind, StateType):
        names = ", ".join(f"StateType.{one.name}" for one in StateType)
        msg = f"{operation}: {type(factory).__name__} has kind = {kind!r}. Set it to one of {names}, or None"
        raise TopologyError(msg)
    check_operation(operation, factory, travels=False)


EXACTLY_ONCE = frozenset(
    {("transactional", "transactional"), ("transactional", "opaque"), ("opaque", "opaque")}
)
"""The pairs (spout, state) that count every record once."""


class GuaranteeWarning(UserWarning):
    """A state may count records more than once, or not at all, when a batch is replayed."""


def weakness(spout: SpoutMode, factory: StateFactory) -> str | None:
    """Return why a state is not exactly-once with a spout; None if it is."""
    if factory.kind is None:
        return (
            "the guarantee of the state is unknown. If it counts a replayed batch once, declare it in its "
            "factory: kind = StateType.OPAQUE or StateType.TRANSACTIONAL (from kinesis_trident.trident)"
        )
    if factory.weakness:
        return factory.weakness
    kind = factory.kind.name.lower()
    if (spout, kind) in EXACTLY_ONCE:
        return None
    if kind == "non_transactional":
        return (
            "a non-transactional state does not store its batch, so a replayed batch counts again. Use .opaque() "
            "or .transactional()"
        )
    if spout == "nontransactional":
        return (
            "with spout=nontransactional a replayed batch can hold other records, and a record can be in two "
            "batches. Use spout=opaque with .opaque()"
        )
    return (
        "with spout=opaque a replayed batch can hold fewer records, if some have expired, and a transactional "
        "state keeps the values of the first attempt. Use .opaque(), or spout=transactional"
    )
