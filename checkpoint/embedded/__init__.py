"""Servers for tests and demonstrations: a real ZooKeeper from PySpark's own jars, and Kinesis by three packages.

Each runs as a separate process on a loopback port, and ends with the process that started it, however that ends
(see `checkpoint.embedded.supervisor`). `EmbeddedServer` does this for any server.
"""

from __future__ import annotations

import http.client
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from kinesis_trident.checkpoint.embedded import supervisor
from kinesis_trident.checkpoint.embedded.java import find_java, zookeeper_class_path
from kinesis_trident.checkpoint.errors import EmbeddedServerError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return an unused loopback port outside the range of outgoing connections' ports.

    So a stopped server finds its port free again when it restarts.

    Raises:
        EmbeddedServerError: a hundred random ports were all taken.
    """
    # Not the shared generator: two processes with the same seed would race for the same ports.
    for port in random.SystemRandom().sample(range(15_000, 32_000), 100):
        if is_free(port):
            return port
    msg = f"there is no free port on {LOOPBACK} between 15000 and 32000. Stop other servers, or name a port"
    raise EmbeddedServerError(msg)


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: closing connections of a former server do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


__all__ = [
    "EmbeddedKinesis",
    "EmbeddedKinesisLocal",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EmbeddedZooKeeper",
]

_START_SECONDS = 90.0
_POLL_SECONDS = 0.05
_PROBE_SECONDS = 1.0
_PORT_ATTEMPTS = 5
_LOG_TAIL = 2000

_ZOO_CFG = """\
clientPort={port}
clientPortAddress={host}
dataDir={data}
tickTime=500
maxSessionTimeout=120000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
"""

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
"""

# Otherwise the access log of moto's server grows by a line with each request.
_MOTO = (
    "import logging; logging.getLogger('werkzeug').setLevel('ERROR'); from moto.server import main; main()"
)


class EmbeddedServer(ABC):
    """A server process with a folder and a port that stay the same over `stop` and `start`.

    Each kind of server is a subclass with its `_command` and `_answers`. The process works in its folder and logs
    to `<name>.log` there.
    """

    name: str
    stop_signal: signal.Signals = signal.SIGTERM
    """The signal that asks the server to end at once, even if clients are connected; after 10 s it is killed."""

    def __init__(self, folder: Path | None, port: int) -> None:
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="kinesis-trident-", ignore_cleanup_errors=True)
            if folder is None
            else None
        )
        self._folder = Path(self._temporary.name) if self._temporary else Path(str(folder)).absolute()
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Prepare the folder and return the server's command line for `self._port`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether the server at `self._port` serves requests; OSError also means no."""

    @property
    def port(self) -> int:
        """The loopback port; 0 before the first start, when none was given."""
        return self._port

    @property
    def running(self) -> bool:
        """True while the server's process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing if it already runs.

        Raises:
            EmbeddedServerError: it ended, or did not answer within 90 s.
            JavaMissingError: ZooKeeper only: there is no Java to run it.
        """
        if self.running:
            return self
        if self._port:
            self._launch()
            return self
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._port = free_port()
            try:
                self._launch()
            except EmbeddedServerError as error:
                self._port = 0
                # Another process took the port between the check and the start.
                if attempt == _PORT_ATTEMPTS or "in use" not in str(error):
                    raise
            else:
                break
        return self

    def stop(self) -> None:
        """Stop the server and wait until it has ended; its port and folder are kept for another start."""
        if self._process is None:
            return
        try:
            self._process.communicate(supervisor.STOP)
        finally:
            # Also when Ctrl-C interrupts the wait: the supervisor stops the server without us.
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._temporary:
            self._temporary.cleanup()

    def _launch(self) -> None:
        if not is_free(self._port):
            # Another process that listens there could be mistaken for our server.
            msg = (
                f"cannot start the embedded {self.name}: {LOOPBACK}:{self._port} is in use. Stop the process that "
                "listens there, or choose another port"
            )
            raise EmbeddedServerError(msg)
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{self.name}.log"
        folder = str(self._folder) if self._temporary else ""
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    supervisor.__file__,
                    folder,
                    str(int(self.stop_signal)),
                    *self._command(),
                ],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # A separate session: Ctrl-C in the terminal reaches only the owner, which stops the server.
                start_new_session=True,
            )
        try:
            self._await_answer(log)
        except BaseException:
            self.stop()
            raise

    def _await_answer(self, log: Path) -> None:
        retrying = Retrying(
            stop=stop_after_delay(_START_SECONDS),
            wait=wait_fixed(_POLL_SECONDS),
            retry=retry_if_result(lambda answered: not answered),
        )
        try:
            retrying(lambda: not self.running or self._is_answering())
        except RetryError:
            msg = f"the embedded {self.name} at {LOOPBACK}:{self._port} did not answer in {_START_SECONDS:.0f} s"
        else:
            if self.running:
                return
            msg = f"the embedded {self.name} at {LOOPBACK}:{self._port} ended while it was starting"
        tail = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip()
        msg = f"{msg}; the end of its log:\n{tail}"
        raise EmbeddedServerError(msg)

    def _is_answering(self) -> bool:
        try:
            return self._answers()
        except (OSError, http.client.HTTPException):
            return False


class EmbeddedZooKeeper(EmbeddedServer):
    """One real ZooKeeper server, run from the jars that PySpark brings.

        with EmbeddedZooKeeper() as zookeeper:
            client = KazooClient(zookeeper.hosts)

    `stop` and `start` keep its port and data, like the restart of a server. Sessions may be as short as 1 s.

    Args:
        data_dir: the folder of its data; if None, a temporary folder that is removed at the end.
        port: a loopback port; 0 chooses a free one.
    """

    name = "zookeeper"

    def __init__(self, data_dir: Path | None = None, port: int = 0) -> None:
        super().__init__(data_dir, port)

    @property
    def hosts(self) -> str:
        """The connection string, `127.0.0.1:port`."""
        return f"{LOOPBACK}:{self._port}"

    def _command(self) -> list[str]:
        config, log4j = self._folder / "zoo.cfg", self._folder / "log4j2.properties"
        data = self._folder / "data"
        config.write_text(
            _ZOO_CFG.format(port=self._port, host=LOOPBACK, data=data.as_posix()), encoding="utf-8"
        )
        log4j.write_text(_LOG4J, encoding="utf-8")
        return [
            str(find_java()),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            zookeeper_class_path(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]

    def _answers(self) -> bool:
        with socket.create_connection((LOOPBACK, self._port), timeout=_PROBE_SECONDS) as connection:
            connection.sendall(b"conf")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        # The folder identifies our server; a server that does not serve yet does not report it.
        return f"dataDir={self._folder.as_posix()}/data/".encode() in answer


class EmbeddedKinesis(EmbeddedServer):
    """moto's server as a local Kinesis: it accepts any credentials, and its data is lost when it stops.

    Suited to simple streams; its sequence numbers are short and it does not end closed shards.

    Args:
        port: a loopback port; 0 chooses a free one.
    """

    name = "kinesis"

    def __init__(self, port: int = 0) -> None:
        super().__init__(None, port)

    @property
    def endpoint_url(self) -> str:
        """The URL for the option `endpointUrl` and for boto3's `endpoint_url`."""
        return f"http://{LOOPBACK}:{self._port}"

    def _command(self) -> list[str]:
        if find_spec("moto") is None:
            msg = (
                "the embedded Kinesis needs moto's server, which is not installed. Run pip install "
                "'kinesis-trident[demo]'"
            )
            raise EmbeddedServerError(msg)
        return [sys.executable, "-c", _MOTO, "-H", LOOPBACK, "-p", str(self._port)]

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=_PROBE_SECONDS)
        try:
            connection.request("GET", "/moto-api/")
            return connection.getresponse().status < 500
        finally:
            connection.close()


class EmbeddedKinesisLocal(EmbeddedServer):
    """The npm package kinesis-local: a Kinesis that reshards as AWS does; its data is lost when it stops.

    Its closed shards end and name their children. Its own delays, such as those of a split, are set to nothing.

    Args:
        port: a loopback port; 0 chooses a free one.
        node: Node.js.
        script: `main.js` of the package.
    """

    name = "kinesis-local"

    def __init__(self, port: int = 0, *, node: Path, script: Path) -> None:
        super().__init__(None, port)
        self.node = node
        self.script = script.resolve()

    @classmethod
    def find(cls, port: int = 0) -> EmbeddedKinesisLocal | None:
        """Return the server of the package that is installed on this machine's path; None without one, or Node.js."""
        node, script = shutil.which("node"), shutil.which("kinesis-local")
        return cls(port, node=Path(node), script=Path(script)) if node and script else None

    @property
    def endpoint_url(self) -> str:
        """The URL for the option `endpointUrl` and for boto3's `endpoint_url`."""
        return f"http://{LOOPBACK}:{self._port}"

    def _command(self) -> list[str]:
        calls = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
        settings = {
            "KINESIS_MOCK_PLAIN_PORT": self._port,
            "KINESIS_MOCK_TLS_PORT": free_port(),
            "KINESIS_MOCK_CERT_PATH": self.script.with_name("server.json"),
            "LOG_LEVEL": "ERROR",
            **{f"{call}_DURATION": "0ms" for call in calls},
        }
        return [
            "env",
            *(f"{key}={value}" for key, value in settings.items()),
            str(self.node),
            str(self.script),
        ]

    def _answers(self) -> bool:
        return _is_healthy(f"{self.endpoint_url}/healthcheck")


class EmbeddedMiniStack(EmbeddedServer):
    """The PyPI package ministack, of which only Kinesis is started; its data is lost when it stops.

    A reshard removes the old shards at once, with what was not read of them.

    Args:
        port: a loopback port; 0 chooses a free one.
        program: the command `ministack` of the package.
    """

    name = "ministack"

    def __init__(self, port: int = 0, *, program: Path) -> None:
        super().__init__(None, port)
        self.program = program

    @classmethod
    def find(cls, port: int = 0) -> EmbeddedMiniStack | None:
        """Return the server of the package that is installed on this machine's path; None without one."""
        program = shutil.which("ministack")
        return cls(port, program=Path(program)) if program else None

    @property
    def endpoint_url(self) -> str:
        """The URL for the option `endpointUrl` and for boto3's `endpoint_url`."""
        return f"http://{LOOPBACK}:{self._port}"

    def _command(self) -> list[str]:
        settings = {
            "GATEWAY_PORT": self._port,
            "BIND_HOST": LOOPBACK,
            "SERVICES": "kinesis",
            "LOG_LEVEL": "ERROR",
            "PERSIST_STATE": "0",
            # Its other ports, and whatever it would find in the user's folders.
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "TMPDIR": self._folder,
        }
        return ["env", *(f"{key}={value}" for key, value in settings.items()), str(self.program)]

    def _answers(self) -> bool:
        return _is_healthy(f"{self.endpoint_url}/_ministack/health")


def _is_healthy(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=_PROBE_SECONDS) as answer:
        return bool(answer.status == 200)
