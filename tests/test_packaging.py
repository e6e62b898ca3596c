"""Test what `pip install` gives, beside whatever else goes by the names of our folders.

Each environment here is a clean one: it sees the dependencies of the running one and nothing of this project. Its
code runs in a folder that holds a user's own `tracker.py`, `spout.py`, ..., each of which fails when it is imported,
and with two packages installed that are called `console` and `trident`, as PyPI has them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import fast_spark
import pytest
from release.archives import DISCOVERY, NAME, PACKAGES, faults, files_of, metadata_of, modules
from release.installed import PROGRAMS
from release.processes import run, site_of

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = {"console": "0.9912", "trident": "1.4.2"}

# No spark.dataSource.register: what Spark finds, it found by discovery.
LOAD = """
import os
from pyspark.sql import SparkSession
from kinesis_trident import ensure_java, reliable

os.environ.update({fast})
ensure_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
stream = spark.readStream.format("kinesis-trident")
for options in ({}, {"streamName": "s", "applicationName": "a", "zookeeper.hosts": "127.0.0.1:2181"}):
    try:
        frame = stream.options(**options).load()
        reliable(frame)
        print("columns", *frame.schema.names)
    except Exception as error:
        print("error", str(error).replace(chr(10), " "))
spark.stop()
"""

LOOK_UP = (PROGRAMS / "look_up.py").read_text()

IMPORT_ALL = f"""
import importlib, pkgutil, {NAME}

for module in pkgutil.walk_packages({NAME}.__path__, "{NAME}."):
    importlib.import_module(module.name)
for name in {NAME}.__all__:
    getattr({NAME}, name)
print({NAME}.__file__)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, links as links, so that building writes nothing into the checkout."""
    copy = tmp_path_factory.mktemp("source") / "project"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "tests", "artifacts")

    def ignored(folder: str, names: list[str]) -> set[str]:
        # Of all folders called build only the one at the top is a product; trident/build is a package.
        built = {"build", "dist"} if Path(folder) == ROOT else set()
        return {*unwanted(folder, names), *(built & set(names))}

    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / ".gitignore", copy)
    # As many have one: an environment in the checkout, which must not get into anything that is built.
    (copy / ".venv" / "lib" / NAME).mkdir(parents=True)
    (copy / "env" / "lib" / "spout").mkdir(parents=True)
    for folder in (copy / ".venv" / "lib" / NAME, copy / "env" / "lib" / "spout"):
        (folder / "stray.py").touch()
    return copy


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist, and of the wheel that `python -m build` makes of it."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source, cwd=folder)
    return only(folder, "*.whl")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheels of the packages on PyPI that are called as two of our folders; made here where no registry answers."""
    folder = tmp_path_factory.mktemp("foreign")
    pip_download = [sys.executable, "-m", "pip", "--timeout", "10", "--retries", "0", "download", "--no-deps"]
    wanted = [f"{name}=={version}" for name, version in FOREIGN.items()]
    done = subprocess.run(
        [*pip_download, "--only-binary", ":all:", "--dest", folder, *wanted], capture_output=True, check=False
    )
    if done.returncode == 0:
        return sorted(folder.iterdir())
    return [made_wheel(folder, name, version) for name, version in FOREIGN.items()]


def made_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel of a package whose modules cannot be imported, one of them called as one of ours."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{name}/errors.py": "raise ImportError('not ours')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")))
    return wheel


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job, with modules of the user's own that must never be imported."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name in PACKAGES:
        (folder / f"{name}.py").write_text(f"raise ImportError('the user\\'s own {name}.py was imported')\n")
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def clean_environment(folder: Path) -> Path:
    """A virtual environment with the running one's dependencies; returns its python.

    A `.pth` file adds their folders, but `.pth` files in those, by which this project may be installed, are
    not followed.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = site_of(folder / "bin" / "python")
    dependencies = [place for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    python = folder / "bin" / "python"
    names = [NAME, *PACKAGES, DISCOVERY.removesuffix(".py")]
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    assert run(python, "-c", code, cwd=folder).stdout.strip() == "[]", "the environment is not clean"
    return python


def pip(python: Path, *arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python]
    run(*command, *arguments, cwd=python.parent)


def install(python: Path, *what: object) -> None:
    pip(python, "install", "--no-index", "--no-deps", "--no-build-isolation", *what)


def in_folder(python: Path, code: str, folder: Path) -> list[str]:
    """Run code as a script in a folder does: the folder is first on the path."""
    (folder / "job_main.py").write_text(code)
    return run(python, folder / "job_main.py", cwd=folder).stdout.strip().splitlines()


def our_files() -> set[str]:
    """The files of the package in the checkout, each by its place below the import name."""
    kinds = ("*.py", "*.html", "*.css", "*.js", "*.svg", "*.toml", "py.typed")
    folders = (*PACKAGES, NAME)
    return modules(
        str(p.relative_to(ROOT)) for one in folders for kind in kinds for p in (ROOT / one).rglob(kind)
    )


def test_the_wheel_holds_each_module_once_below_the_import_name_and_nothing_else(wheel: Path) -> None:
    assert faults(wheel.name, files_of(wheel), wheel.stat().st_size, our_files()) == []


@pytest.mark.long
def test_the_wheel_from_the_sdist_is_the_one_from_the_checkout_byte_for_byte(
    built: Path, wheel: Path
) -> None:
    """`make release` checks both archives too."""
    assert only(built, "*.whl").read_bytes() == wheel.read_bytes()


@pytest.mark.long
def test_both_archives_are_the_same_of_files_that_were_written_at_another_time(
    source: Path, built: Path, tmp_path: Path
) -> None:
    """Whoever has the commit can check what was published. `make release` builds the same archives."""
    later = shutil.copytree(source, tmp_path / "later", symlinks=True)
    for path in later.rglob("*.py"):
        os.utime(path, (2e9, 2e9))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", later, cwd=tmp_path)
    for pattern in ("*.whl", "*.tar.gz"):
        assert only(tmp_path / "dist", pattern).read_bytes() == only(built, pattern).read_bytes(), pattern


@pytest.mark.long
def test_the_sdist_holds_the_package_once(built: Path) -> None:
    """`make release` checks both archives too."""
    sdist = only(built, "*.tar.gz")
    assert faults(sdist.name, files_of(sdist), sdist.stat().st_size, our_files()) == []


def test_the_base_install_brings_no_spark(wheel: Path) -> None:
    needed = metadata_of(wheel).get_all("Requires-Dist", [])
    base = [line for line in needed if "extra ==" not in line]
    assert base
    assert not [line for line in base if line.startswith(("pyspark", "localstack"))]
    assert any(line.startswith("pyspark") and line.endswith("extra == 'spark'") for line in needed)
    assert any(
        line.startswith("localstack-client") and line.endswith("extra == 'localstack'") for line in needed
    )


@pytest.fixture
def beside_others(wheel: Path, foreign: list[Path], tmp_path: Path) -> Path:
    """The python of an environment with the wheel, and then the packages on PyPI of the same names."""
    python = clean_environment(tmp_path / "venv")
    before = set(site_of(python).iterdir())
    install(python, wheel)
    ours = {path.name for path in set(site_of(python).iterdir()) - before}
    assert {name for name in ours if not name.endswith((".dist-info", "__pycache__"))} == {NAME, DISCOVERY}
    install(python, *foreign)
    assert all((site_of(python) / name).is_dir() for name in FOREIGN)
    return python


def test_the_wheel_beside_packages_and_modules_of_the_same_names(beside_others: Path, job: Path) -> None:
    python = beside_others
    assert in_folder(python, LOOK_UP, job) == ["kinesis-trident"]
    pip(python, "uninstall", "--yes", *FOREIGN)
    for name in FOREIGN:
        assert not (site_of(python) / name).exists()
    (where,) = in_folder(python, IMPORT_ALL, job)
    assert Path(where).is_relative_to(site_of(python))
    usage = run(python.parent / "kinesis-trident", "--help", cwd=job).stdout
    assert "checkpoints" in usage


@pytest.mark.long
def test_spark_loads_the_format_of_the_wheel(beside_others: Path, job: Path) -> None:
    """The test above looks the format up as Spark's JVM does."""
    error, columns = in_folder(beside_others, LOAD.replace("{fast}", repr(fast_spark.environment())), job)
    assert error.startswith("error ")
    assert "streamName" in error
    assert "DATA_SOURCE_NOT_FOUND" not in error
    assert columns.split()[:3] == ["columns", "partitionKey", "data"]


@pytest.mark.long
def test_the_sdist_beside_packages_and_modules_of_the_same_names(
    built: Path, foreign: list[Path], job: Path, tmp_path: Path
) -> None:
    """The wheel that is made of it is the one that the tests above install."""
    python = clean_environment(tmp_path / "venv")
    install(python, *foreign, only(built, "*.tar.gz"))
    assert in_folder(python, LOOK_UP, job) == ["kinesis-trident"]
    (where,) = in_folder(python, IMPORT_ALL, job)
    assert Path(where).is_relative_to(site_of(python))


@pytest.mark.long
def test_discovery_from_an_editable_install(source: Path, job: Path, tmp_path: Path) -> None:
    """The environment of these tests is such an install."""
    python = clean_environment(tmp_path / "venv")
    install(python, "--editable", source)
    assert in_folder(python, LOOK_UP, job) == ["kinesis-trident"]
    (where,) = in_folder(python, IMPORT_ALL, job)
    assert Path(where).is_relative_to(source)


@pytest.mark.long
def test_without_the_discovery_module_nothing_is_found(wheel: Path, job: Path, tmp_path: Path) -> None:
    """The tests above can fail."""
    python = clean_environment(tmp_path / "venv")
    # Hardly any of it is imported.
    install(python, "--no-compile", wheel)
    (site_of(python) / DISCOVERY).unlink()
    assert in_folder(python, LOOK_UP, job) == ["nothing"]
