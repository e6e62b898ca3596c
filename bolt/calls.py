"""Functions and objects that users give: how they are called, and that they can be pickled to tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.steps.functions import reason_of


def count_needed(function: Callable[..., Any]) -> int | None:
    """Return the number of arguments that a function is given by position: a parameter with a default is its own.

    None: it takes any number, or Python cannot tell.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters)


def check_call(what: str, function: Callable[..., Any], given: tuple[str, ...]) -> None:
    """Check that a function accepts these arguments.

    Raises:
        TopologyError: it does not.
    """
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        msg = f"{what} is called with ({', '.join(given)}): {error}"
        raise TopologyError(msg) from error
    except ValueError:
        # Python does not know the parameters of some functions in C.
        return


def check_pickled(what: str, given: object, where: str = "prepare()") -> None:
    """Check that an object can travel to the tasks; `where` is the place for what cannot.

    Raises:
        TopologyError: it cannot.
    """
    try:
        cloudpickle.dumps(given)  # type: ignore[no-untyped-call]
    except Exception as error:
        msg = (
            f"{what} cannot be pickled to its tasks ({reason_of(error)}). Make connections, locks and open files "
            f"in {where}, not before"
        )
        raise TopologyError(msg) from error
