"""The public names: each is there, a type checker sees each, and none is imported before it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

import kinesis_trident
import kinesis_trident.decoders
import kinesis_trident.errors
import kinesis_trident.testing
import kinesis_trident.trident
import kinesis_trident.trident.maps

PUBLIC = [
    kinesis_trident,
    kinesis_trident.errors,
    kinesis_trident.testing,
    kinesis_trident.trident,
    kinesis_trident.trident.maps,
]
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


def imported(module: ModuleType) -> dict[str, str]:
    """The module of each name that a type checker reads from a public module."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    [typed] = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    names = [
        (node.module or "", alias)
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    # With another name, or none, a type checker takes it for an import of the module's own.
    assert all(alias.name == alias.asname for _, alias in names)
    return {alias.name: home for home, alias in names}


@public
def test_a_type_checker_reads_the_same_names_from_the_same_modules(module: ModuleType) -> None:
    homes = imported(module)
    assert {*homes, "__version__"} == {*module.__all__, "__version__"}
    for name, home in homes.items():
        assert getattr(module, name) is getattr(import_module(home), name)


def test_the_names_of_an_archive_are_there(tmp_path: Path) -> None:
    """As Spark ships one to executors, with `--py-files`."""
    with ZipFile(tmp_path / "package.zip", "w") as archive:
        for folder in ("", "common", "tracker"):
            for path in (ROOT / "kinesis_trident" / folder).glob("*.py"):
                archive.write(path, path.relative_to(ROOT))
    run(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path / 'package.zip')!r})\n"
        "import kinesis_trident\n"
        "assert 'package.zip' in kinesis_trident.__file__\n"
        "assert 'package.zip' in kinesis_trident.Acker.__init__.__code__.co_filename"
    )


def test_a_name_of_several_public_modules_is_one_object() -> None:
    homes: dict[str, set[str]] = {}
    for module in PUBLIC:
        for name, home in imported(module).items():
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
