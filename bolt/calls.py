"""Functions and objects that users give: how they are called, and that they can be pickled to tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark import cloudpickle

from kinesis_trident.bolt.errors import BoltError, OperatorError, TopologyError
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.common.errors import KinesisTridentError


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


def check_runs(
    what: str,
    function: Callable[..., Any],
    *,
    yields: bool = False,
    refusal: type[BoltError] = TopologyError,
) -> None:
    """Check that calling a function runs it: `async def` and generator functions only make an object that nobody runs.

    Args:
        what: the function, in messages.
        function: a function, a method, or an object that is called.
        yields: what the function yields is taken, so it may be a generator function.
        refusal: the class of the error.

    Raises:
        BoltError: it would not run.
    """
    for one in (function, None if inspect.isroutine(function) else type(function).__call__):
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            msg = (
                f"{what} is async, so nobody would await it. Define it with def, and call asyncio.run() in it"
            )
            raise refusal(msg)
        if inspect.isgeneratorfunction(one) and not yields:
            msg = f"{what} has a yield, so calling it runs nothing. Return its value, or emit it, in place of yield"
            raise refusal(msg)


def refuse_returned(what: str, returned: object, refusal: type[KinesisTridentError] = OperatorError) -> None:
    """Refuse what a call returns that nobody reads.

    Raises:
        KinesisTridentError: it returned something; `refusal` is the class.
    """
    if returned is not None:
        _refuse(
            what,
            returned,
            "expected None. Returned or yielded values are lost: emit them, and write no async and no yield",
            refusal,
        )


def refuse_not_run(what: str, returned: object, refusal: type[KinesisTridentError] = OperatorError) -> None:
    """Refuse a coroutine or a generator as an answer: it is code that nobody has run.

    Raises:
        KinesisTridentError: the answer is one; `refusal` is the class.
    """
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        _refuse(what, returned, "which nobody runs. Write no async and no yield", refusal)


def _refuse(what: str, returned: object, why: str, refusal: type[KinesisTridentError]) -> NoReturn:
    if inspect.iscoroutine(returned):
        # Python warns of one that is thrown away.
        returned.close()
    msg = f"{what} returned {type(returned).__name__}, {why}"
    raise refusal(msg)


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
