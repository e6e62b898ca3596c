"""docker-compose.yml without Docker: its services as processes on loopback, with the commands and checks of the file.

A container's name and port become a free port of this machine, a path in a container becomes one below a folder. What
an image would start by itself is written here: ZooKeeper with a configuration after the image's variables, and
Prometheus. Grafana is left out: no package of Debian's or PyPI's has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import fast_spark
import yaml

from kinesis_trident.checkpoint.embedded import LOOPBACK, EmbeddedServer, EmbeddedZooKeeper, free_port
from kinesis_trident.checkpoint.embedded.java import ensure_java

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docker-compose.yml"
ENDS = ("demo", "words", "grafana")
"""The services that nothing else needs: two jobs, and what a person looks at."""

_PROBE_SECONDS = 30.0
_JOB_SECONDS = 900.0
_SERVER = re.compile(r"server\.(\d+)=([\w-]+):(\d+):(\d+)")
_HERE = re.compile(r"(localhost|127\.0\.0\.1|0\.0\.0\.0)([:/])(\d+)")


def load() -> dict[str, Any]:
    """Return the file, with its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


class Composition:
    """The services of the file, in a folder, started in the order of `depends_on`."""

    def __init__(self, folder: Path, program_of: Callable[[str], Path]) -> None:
        self.file = load()
        self.services: dict[str, dict[str, Any]] = self.file["services"]
        self._folder = folder
        self._program_of = program_of
        self._running = ExitStack()
        text = yaml.safe_dump(self.file, width=10_000)
        named = re.findall(rf"\b({'|'.join(self.services)}):(\d+)\b", text)
        named += [(host, port) for _, host, *ports in _SERVER.findall(text) for port in ports]
        own = [
            (name, found[2])
            for name, service in self.services.items()
            for found in _HERE.findall(yaml.safe_dump(service.get("healthcheck", {}), width=10_000))
        ]
        inside = sorted({(name, int(port)) for name, port in (*named, *own)})
        self._ports = dict(zip(inside, _free_ports(len(inside)), strict=True))
        self._paths = {"/home/demo": folder / "home", "/prometheus": folder / "metrics"}
        for service in self.services.values():
            for target in service.get("tmpfs", []):
                self._paths[target] = folder / target.lstrip("/")
            for source, target in (mount.split(":")[:2] for mount in service.get("volumes", [])):
                if source.startswith("."):
                    self._paths[target] = folder / target.lstrip("/")

    def port(self, service: str, port: int) -> int:
        """Return the port of this machine that stands for a container's."""
        return self._ports[service, port]

    def ports(self, service: str) -> list[int]:
        """Return all ports of a service."""
        return [free for (name, _), free in self._ports.items() if name == service]

    def start(self, names: Iterable[str]) -> Self:
        """Start services and what they depend on; return when the health check of each has passed."""
        (self._folder / "home" / "shared").mkdir(parents=True, exist_ok=True)
        for service in self.services.values():
            for source, target in (mount.split(":")[:2] for mount in service.get("volumes", [])):
                if source.startswith("."):
                    path = self._paths[target]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(self.translate("", (ROOT / source).read_text()))
        started: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(len(self.services)) as pool:

            def begin(name: str) -> Future[None]:
                if name not in started:
                    needed = [begin(other) for other in self.services[name].get("depends_on", {})]
                    started[name] = pool.submit(self._start_after, name, needed)
                return started[name]

            for one in [begin(name) for name in names]:
                one.result()
        return self

    def _start_after(self, name: str, needed: list[Future[None]]) -> None:
        for one in needed:
            one.result()
        if name in ENDS:
            return
        if "test" not in self.services[name].get("healthcheck", {}):
            # What others wait for without one, they wait for to end.
            self.run(name)
        else:
            server = _Service(self, name, self._folder / "services" / name)
            self._running.callback(server.stop)
            server.start()

    def run(self, name: str, *more: str) -> str:
        """Run the command of a service that ends, with more arguments; return what it printed."""
        done = subprocess.run(
            [*self.command(name), *more],
            cwd=ROOT,
            env=os.environ | self.environment(name),
            capture_output=True,
            text=True,
            timeout=_JOB_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        """Stop all of them."""
        self._running.close()

    def command(self, name: str) -> list[str]:
        """Return the command line of a service, for this machine."""
        service = self.services[name]
        words = [self.translate(name, str(word)) for word in service.get("command", [])]
        if service["image"].startswith("prom/prometheus:"):
            words = ["prometheus", *words]
        if service["image"].startswith("redis:"):
            words += ["--bind", LOOPBACK]
        if words[0] == "kinesis-trident":
            # The installed script may be that of another checkout.
            words[:1] = [sys.executable, "-c", "from kinesis_trident.console.cli import main; main()"]
        if words[0] in ("redis-server", "prometheus"):
            words[0] = str(self._program_of(words[0]))
        return words

    def probe(self, name: str) -> list[str]:
        """Return the command of a service's health check, for this machine."""
        form, *words = self.services[name]["healthcheck"]["test"]
        assert form == "CMD", f"{name}: only a list of words runs without a shell of the image's"
        return [self.translate(name, word) for word in words]

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service, and those that take the place of its image's."""
        given: Mapping[str, Any] = self.services[name].get("environment", {})
        options = fast_spark.environment()["SPARK_SUBMIT_OPTS"]
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "JAVA_HOME": str(ensure_java()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_JAVA_OPTS": options,
            **{key: self.translate(name, str(value)) for key, value in given.items()},
        }

    def translate(self, name: str, text: str) -> str:
        """Return a word of the file as it must be on this machine; `name` is the service that it is of."""
        for (service, port), free in self._ports.items():
            text = re.sub(rf"(?<![\w.-]){service}:{port}\b", f"{LOOPBACK}:{free}", text)

        def here(found: re.Match[str]) -> str:
            port = self._ports.get((name, int(found[3])))
            return found[0] if port is None else f"{LOOPBACK}{found[2]}{port}"

        text = _HERE.sub(here, text).replace("0.0.0.0", LOOPBACK)
        value = text.rpartition("=")[2]
        if value.isdigit() and (name, int(value)) in self._ports:
            text = text.removesuffix(value) + str(self._ports[name, int(value)])
        if name and text == self.services[name].get("hostname"):
            text = LOOPBACK
        # The longest first: a file in a folder that is mounted too.
        for inside in sorted(self._paths, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.]){re.escape(inside)}(?![\w.-])", str(self._paths[inside]), text)
        return text


def _free_ports(count: int) -> list[int]:
    found: dict[int, None] = {}
    while len(found) < count:
        # A port that nobody listens on yet may be drawn twice.
        found[free_port()] = None
    return list(found)


class _Service(EmbeddedServer):
    """One service; it answers once its own health check passes."""

    def __init__(self, composition: Composition, name: str, folder: Path) -> None:
        # Any of its ports: one that is taken would keep the service from starting.
        super().__init__(folder, composition.ports(name)[0])
        self.name = name
        self._composition = composition
        self._environment = composition.environment(name)

    def _command(self) -> list[str]:
        if self._composition.services[self.name]["image"].startswith("zookeeper:"):
            words = _Member(self._composition, self.name, self._folder).words()
        else:
            words = self._composition.command(self.name)
        return ["env", *(f"{key}={value}" for key, value in self._environment.items()), *words]

    def _answers(self) -> bool:
        done = subprocess.run(
            self._composition.probe(self.name),
            env=os.environ | self._environment,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        return done.returncode == 0


class _Member(EmbeddedZooKeeper):
    """The command of a ZooKeeper server, with the configuration that the image makes of its variables."""

    def __init__(self, composition: Composition, name: str, folder: Path) -> None:
        super().__init__(folder, composition.port(name, 2181))
        given = composition.services[name]["environment"]
        self._number = given["ZOO_MY_ID"]
        self._servers = [
            f"server.{number}={LOOPBACK}:{composition.port(host, int(quorum))}:{composition.port(host, int(election))}"
            for number, host, quorum, election in _SERVER.findall(given["ZOO_SERVERS"])
        ]

    def words(self) -> list[str]:
        """Prepare the folder; return the command line."""
        command = super()._command()
        with (self._folder / "zoo.cfg").open("a") as config:
            config.write("\n".join(["initLimit=60", "syncLimit=60", *self._servers, ""]))
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self._number))
        return command
