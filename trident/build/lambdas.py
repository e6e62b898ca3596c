"""Operations made of plain Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kinesis_trident.bolt.calls import refuse_not_run
from kinesis_trident.trident.errors import OperationError
from kinesis_trident.trident.operations import Filter, Function
from kinesis_trident.trident.tuples import TridentCollector, TridentTuple


class Keep(Filter):
    """Keeps a tuple if a function returns True."""

    def __init__(self, condition: Callable[[TridentTuple], Any]) -> None:
        # The function itself: a method around it would take as long again, for each tuple.
        self.is_keep = condition  # type: ignore[assignment,method-assign]
        self.__name__ = name_of(condition)


class Peek(Filter):
    """Calls a function with a tuple, and keeps the tuple."""

    def __init__(self, function: Callable[[TridentTuple], object]) -> None:
        self._function = function
        self.__name__ = name_of(function)

    def is_keep(self, tup: TridentTuple) -> bool:
        """Call the function."""
        refuse_not_run(f"{self.__name__}()", self._function(tup), OperationError)
        return True


class One(Function):
    """Emits the tuple, a list of values, that a function returns."""

    def __init__(self, function: Callable[[TridentTuple], Sequence[Any]]) -> None:
        self._function = function

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """Call the function."""
        collector.emit(self._function(tup))


class Many(Function):
    """Emits each of the tuples that a function returns."""

    def __init__(self, function: Callable[[TridentTuple], Sequence[Sequence[Any]]]) -> None:
        self._function = function

    def execute(self, tup: TridentTuple, collector: TridentCollector) -> None:
        """Call the function."""
        for values in self._function(tup):
            collector.emit(values)


def name_of(operation: object) -> str:
    """Return the name of an operation in messages."""
    return str(getattr(operation, "__name__", type(operation).__name__))
