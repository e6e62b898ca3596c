"""Storm's methods and settings that Spark has no place for: `unsupported.toml` has what to use in place of each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from kinesis_trident.bolt.errors import BoltError, TopologyError


@cache
def _remedies() -> dict[str, dict[str, str]]:
    """Return what to use instead of each method, by the class of Storm's that has it, and instead of each setting."""
    return tomllib.loads(files(__package__).joinpath("unsupported.toml").read_text("utf-8"))


class StormNames:
    """Refuses methods of Storm's that are not here, in either spelling, with what to use in their place."""

    __slots__ = ()

    _storm: ClassVar[str] = ""
    """The class of Storm's."""

    _refusal: ClassVar[type[BoltError]] = TopologyError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                self._refuse_name(name)
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)

    def _refuse_name(self, name: str) -> None:
        ours, what = snake(name), type(self).__name__
        remedies = _remedies().get(self._storm, {})
        known = remedies.get(ours) or remedies.get(ours.removesuffix("_by_field"))
        if known is not None:
            by_name = "Write tup['word']" if ours.endswith("_by_field") else known
            self._refuse_with(f"{what}: there is no {name}() on Spark. {by_name}")
        if ours != name and hasattr(type(self), ours):
            self._refuse_with(f"{what}: {name}() of Storm has another name here. Call {ours}()")

    def _refuse_with(self, msg: str) -> NoReturn:
        raise self._refusal(msg)


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
