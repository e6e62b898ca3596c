"""What an operation is given is of the kind that it takes, or the topology is not built."""

from __future__ import annotations

from trident.errors import TopologyError
from trident.lambdas import name_of
from trident.state import StateFactory, StateType

__all__ = ["check_factory", "check_given"]


def check_given(given: object, kind: type, operation: str, hint: str = "") -> None:
    """Check that what was given is an object of a class.

    Raises:
        TopologyError: it is something else, or the class of such an object; `hint` says what to do.
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
    """Check that something makes states, and says of which kind in a way that can be understood.

    Raises:
        TopologyError: it does not.
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
        msg = f"{operation}: {type(factory).__name__} has kind = {kind!r}; it is one of {names}, or None"
        raise TopologyError(msg)
