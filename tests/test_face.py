"""The public names: each is there, a type checker sees each, and none is imported before it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import kinesis_trident
import kinesis_trident.testing
import kinesis_trident.trident
import kinesis_trident.trident.maps

PUBLIC = [kinesis_trident, kinesis_trident.testing, kinesis_trident.trident, kinesis_trident.trident.maps]
ROOT = Path(__file__).resolve().parent.parent

public = pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@public
def test_every_public_name_is_there(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


@public
def test_a_wrong_name_is_an_attribute_error(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Relyable'"):
        module.Relyable  # noqa: B018
    with pytest.raises(ImportError, match="Relyable"):
        exec(f"from {module.__name__} import Relyable")


@public
def test_a_type_checker_reads_the_same_names_from_the_same_modules(module: ModuleType) -> None:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    [typed] = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = {
        alias.name: node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == module._HOMES
    assert {*imported, "__version__"} == {*module.__all__, "__version__"}


@public
def test_a_public_name_is_public_in_its_own_module(module: ModuleType) -> None:
    for name, home in module._HOMES.items():
        assert name in import_module(home).__all__


def test_a_name_of_several_public_modules_is_one_object() -> None:
    homes: dict[str, set[str]] = {}
    for module in PUBLIC:
        for name, home in module._HOMES.items():
            homes.setdefault(name, set()).add(home)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_nothing_heavy_is_imported_before_it_is_asked_for() -> None:
    run(
        "import sys\n"
        f"import {', '.join(module.__name__ for module in PUBLIC)}\n"
        "heavy = {'boto3', 'google.protobuf', 'kazoo', 'numpy', 'pandas', 'pyarrow', 'pyspark', 'redis'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )


def test_the_fakes_need_neither_moto_nor_pytest() -> None:
    run(
        "import sys\n"
        "sys.modules |= dict.fromkeys(('moto', 'pytest', '_pytest'))\n"
        "import kinesis_trident.testing as testing\n"
        "for name in testing.__all__: getattr(testing, name)"
    )


def test_a_state_needs_only_the_client_of_its_own_store() -> None:
    run(
        "import sys\n"
        "sys.modules |= dict.fromkeys(('redis', 'sqlalchemy'))\n"
        "from kinesis_trident.trident import FileState, MemcachedState, MemoryMapState\n"
        "MemoryMapState.opaque()"
    )
