"""Storm's methods and settings that Spark has no place for: `unsupported.toml` has what to use in place of each."""

from __future__ import annotations

import re
import tomllib
from abc import ABCMeta
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.common.errors import KinesisTridentError

Made = TypeVar("Made")


@cache
def _remedies() -> dict[str, dict[str, str]]:
    """Return what to use instead of each method, by the class of Storm's that has it, and instead of each setting."""
    return tomllib.loads(files(__package__).joinpath("unsupported.toml").read_text("utf-8"))


class StormNames:
    """Refuses methods of Storm's that are not here, in either spelling, with what to use in their place."""

    __slots__ = ()

    _storm: ClassVar[tuple[str, ...]] = ()
    """The classes of Storm's that have its methods."""

    _refusal: ClassVar[type[KinesisTridentError]] = TopologyError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                self._refuse_name(name)
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)

    def _refuse_name(self, name: str) -> None:
        if hint := hint_of(type(self), self._storm, name):
            self._refuse_with(hint)

    def _refuse_with(self, msg: str) -> NoReturn:
        raise self._refusal(msg)


class StormClass(ABCMeta):
    """A class that refuses names of Storm's which are asked of the class itself: `MemoryMapState.Factory`."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            if not name.startswith("_") and (hint := hint_of(cls, cls._storm, name)):
                raise cls._refusal(hint)
            msg = f"type object {cls.__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)


class _Refused:
    """An attribute that an object does not have."""

    def __init__(self, error: KinesisTridentError) -> None:
        self._error = error

    def __get__(self, made: object, kind: type | None = None) -> Self:
        if made is None:
            return self
        raise type(self._error)(*self._error.args)


def refuse_storm_names(storm: str, refusal: type[KinesisTridentError]) -> Callable[[type[Made]], type[Made]]:
    """Refuse a class of Storm's names as `StormNames` does, for a class whose objects each record uses.

    `__getattr__` would make every use of an attribute slower. The error is no record's: each one would fail for it.
    """

    def add(kind: type[Made]) -> type[Made]:
        remedies = _remedies()[storm]
        getters = [f"{name}_by_field" for name, remedy in remedies.items() if remedy == "Write tup[0]"]
        own = [name for name in dir(kind) if not name.startswith("_")]
        for ours in {*remedies, *getters, *own}:
            for name in {ours, camel(ours)} - set(own):
                if hint := hint_of(kind, (storm,), name):
                    setattr(kind, name, _Refused(refusal(hint)))
        return kind

    return add


def hint_of(kind: type, storm: Iterable[str], name: str) -> str | None:
    """Return what to use instead of a name of Storm's, of a class or its objects; None if there is nothing."""
    ours = snake(name)
    remedies: dict[str, str] = {}
    for one in storm:
        remedies |= _remedies()[one]
    known = remedies.get(ours) or remedies.get(ours.removesuffix("_by_field"))
    if known is not None:
        by_name = "Write tup['word']" if ours.endswith("_by_field") else known
        return f"{kind.__name__}: there is no {name}() on Spark. {by_name}"
    if ours != name and hasattr(kind, ours):
        return f"{kind.__name__}: {name}() of Storm has another name here. Call {ours}()"
    return None


def camel(name: str) -> str:
    """Return a name of Python in the spelling of Java."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def snake(name: str) -> str:
    """Return a name of Java in the spelling of Python."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def check_configuration(what: str, names: Iterable[object]) -> None:
    """Check that a configuration has no setting of Storm's that would have no effect.

    Raises:
        TopologyError: it has one, or a name is not a text.
    """
    for name in names:
        if not isinstance(name, str):
            msg = f"{what}: {name!r} is not the name of a configuration entry. Give a text"
            raise TopologyError(msg)
        if remedy := _remedies()["settings"].get(name):
            msg = f"{what}: the setting {name!r} has no effect on Spark. {remedy}"
            raise TopologyError(msg)
