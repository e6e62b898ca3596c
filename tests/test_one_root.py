"""One root of errors and one tree of loggers, in all modules."""

from __future__ import annotations

import inspect
import logging
import pkgutil
from collections import defaultdict
from importlib import import_module
from types import ModuleType

import pytest

import kinesis_trident
from kinesis_trident import FailedException, KinesisTridentError, TopologyError
from kinesis_trident.bolt.errors import BoltError

CAUGHT = {
    "ChangedMeanwhileError",
    "LostCommitError",
    "MissingNameError",
    "NewerVersionError",
    "NotPlannedError",
    "ProtocolError",
    "UnfitError",
    "UnreadableError",
}
"""They never leave the package: whoever calls what raises them catches them, and says what follows."""


@pytest.fixture(scope="module")
def modules() -> list[ModuleType]:
    """All that the package holds."""
    found = pkgutil.walk_packages(kinesis_trident.__path__, f"{kinesis_trident.__name__}.")
    return [kinesis_trident, *(import_module(one.name) for one in found)]


def own_errors(modules: list[ModuleType]) -> set[type[Exception]]:
    return {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, BaseException)
        and not issubclass(value, Warning)
        and value.__module__.partition(".")[0] == kinesis_trident.__name__
    }


def test_every_package_is_walked(modules: list[ModuleType]) -> None:
    packages = {module.__name__.split(".")[1] for module in modules[1:]}
    assert {"bolt", "checkpoint", "console", "spout", "testing", "tracker", "trident"} <= packages


def test_every_error_has_the_one_root(modules: list[ModuleType]) -> None:
    errors = own_errors(modules)
    assert len(errors) > 50
    others = {error.__name__ for error in errors if not issubclass(error, KinesisTridentError)}
    assert others == CAUGHT


def test_each_package_has_one_root_of_its_errors(modules: list[ModuleType]) -> None:
    """Beside it are the errors of all packages: what users raise, and a package that is not installed."""
    roots = {
        (error.__module__.split(".")[1], error.__name__)
        for error in own_errors(modules)
        if KinesisTridentError in error.__bases__
        and ".testing" not in error.__module__
        and error.__name__.endswith("Error")
    }
    assert roots == {
        ("bolt", "BoltError"),
        ("checkpoint", "CheckpointError"),
        ("console", "ConsoleError"),
        ("spout", "SpoutError"),
        ("common", "FolderError"),
        ("common", "MissingPackageError"),
        ("tracker", "TrackerError"),
        ("trident", "TridentError"),
    }
    assert FailedException.__bases__ == (KinesisTridentError,)
    assert issubclass(TopologyError, BoltError)


def test_an_error_says_what_it_means(modules: list[ModuleType]) -> None:
    assert {error for error in own_errors(modules) if not vars(error).get("__doc__")} == set()


@pytest.mark.parametrize("wanted", [FailedException, TopologyError, KinesisTridentError])
def test_there_is_one_class_of_the_name(modules: list[ModuleType], wanted: type[Exception]) -> None:
    assert {error for error in own_errors(modules) if error.__name__ == wanted.__name__} == {wanted}


def test_every_logger_stands_in_the_one_tree(modules: list[ModuleType]) -> None:
    loggers = {
        value.name: module.__name__
        for module in modules
        for value in vars(module).values()
        if isinstance(value, logging.Logger)
    }
    assert len(loggers) > 10
    assert {name for name in loggers if not name.startswith("kinesis_trident.")} == set()


def test_a_logger_has_the_name_of_its_module(modules: list[ModuleType]) -> None:
    elsewhere = defaultdict(set)
    for module in modules:
        for variable, value in vars(module).items():
            if isinstance(value, logging.Logger) and not value.name.startswith(module.__name__):
                elsewhere[value.name].add(f"{module.__name__}.{variable}")
    assert elsewhere == {}
