"""Redis, memcached, PostgreSQL, MariaDB and local Kinesis servers, embedded: nothing on disk outlives them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from kinesis_trident.checkpoint.embedded import EmbeddedKinesisLocal, EmbeddedMiniStack, EmbeddedServer

LOOPBACK = "127.0.0.1"


def kill_server(server: EmbeddedServer) -> None:
    """`kill -9` to a server; its port and what it has on disk stay for another start."""
    supervisor = server._process
    assert supervisor is not None
    for process in psutil.Process(supervisor.pid).children():
        process.kill()
    supervisor.wait()


class RedisServer(EmbeddedServer):
    """`url` is `redis://127.0.0.1:port`. It holds everything in memory. `settings` are more of its own."""

    name = "redis"

    def __init__(self, program: Path, **settings: object) -> None:
        super().__init__(None, 0)
        self._program = program
        self._settings = settings

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}"

    def kill(self) -> None:
        """`kill -9`, and a new start on what is on disk."""
        kill_server(self)
        self.start()

    def _command(self) -> list[str]:
        settings = {"bind": LOOPBACK, "port": self.port, "save": "", "appendonly": "no", **self._settings}
        return [
            str(self._program),
            *(
                word
                for key, value in settings.items()
                for word in (f"--{key.replace('_', '-')}", *str(value).split(" "))
            ),
        ]

    def _answers(self) -> bool:
        return _ask(self.port, b"PING\r\n").startswith(b"+PONG")


class MemcachedServer(EmbeddedServer):
    """`address` is the pair of host and port."""

    name = "memcached"

    def __init__(self, program: Path) -> None:
        super().__init__(None, 0)
        self._program = program

    @property
    def address(self) -> tuple[str, int]:
        return LOOPBACK, self.port

    def _command(self) -> list[str]:
        # It refuses to run as root.
        user = ["-u", _unprivileged().pw_name] if os.geteuid() == 0 else []
        return [str(self._program), "-l", LOOPBACK, "-p", str(self.port), "-U", "0", "-m", "64", *user]

    def _answers(self) -> bool:
        return _ask(self.port, b"version\r\n").startswith(b"VERSION")


class PostgresServer(EmbeddedServer):
    """`url` is `postgresql://postgres@127.0.0.1:port/postgres`: a superuser without a password, for this host only.

    `settings` are more of its own.
    """

    name = "postgres"
    # Fast shutdown: SIGTERM would wait for every client to leave.
    stop_signal = signal.SIGINT

    def __init__(self, program: Path, **settings: str) -> None:
        super().__init__(None, 0)
        self._settings = settings
        # initdb and pg_isready are beside the program, not beside a link to it.
        self.program = program.resolve()

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    def _command(self) -> list[str]:
        as_user: list[str] = []
        if os.geteuid() == 0:
            # It refuses to run as root.
            user = _unprivileged()
            shutil.chown(self._folder, user.pw_uid, user.pw_gid)
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        if not self.data.exists():
            how = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
            initdb = [*as_user, str(self.program.with_name("initdb")), "-D", str(self.data), *how]
            subprocess.run(initdb, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            **self._settings,
        }
        chosen = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [*as_user, str(self.program), "-D", str(self.data), *chosen]

    def _answers(self) -> bool:
        # The port answers before the database does.
        ready = [str(self.program.with_name("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0


class MariaDBServer(EmbeddedServer):
    """`url` is `mysql://root@127.0.0.1:port/test`: everybody is a superuser without a password, on this host only.

    With `grants` only root is, and users have rights. `settings` are more of its own.
    """

    name = "mariadb"

    def __init__(self, program: Path, *, grants: bool = False, **settings: str) -> None:
        super().__init__(None, 0)
        self._program = program
        self._grants = grants
        self._settings = settings

    @property
    def url(self) -> str:
        return f"mysql://root@{LOOPBACK}:{self.port}/test"

    def _command(self) -> list[str]:
        data = self._folder / "data"
        as_user: list[str] = []
        # A folder is a database. Without grant tables no other one is needed.
        (data / "test").mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            # It refuses to run as root.
            user = _unprivileged().pw_name
            as_user = [f"--user={user}"]
            for folder in (self._folder, data, data / "test"):
                shutil.chown(folder, user)
        settings = {
            "datadir": data,
            "bind-address": LOOPBACK,
            "port": self.port,
            "socket": self._folder / "socket",
            "character-set-server": "utf8mb4",
            "innodb-flush-log-at-trx-commit": 0,
            "max-allowed-packet": "64M",
            "innodb-stats-persistent": "OFF",
            **self._settings,
        }
        chosen = [f"--{key}={value}" for key, value in settings.items()]
        if self._grants and not (data / "mysql").exists():
            scripts = (f"mysql_system_tables{part}.sql" for part in ("", "_data"))
            texts = [(Path("/usr/share/mysql") / script).read_text() for script in scripts]
            begin = ["SET @auth_root_socket = NULL;", "CREATE DATABASE mysql;", "USE mysql;"]
            subprocess.run(
                [str(self._program), "--no-defaults", "--bootstrap", f"--datadir={data}", *as_user],
                input="\n".join([*begin, *texts]),
                text=True,
                check=True,
                capture_output=True,
            )
        return [
            str(self._program),
            "--no-defaults",
            *(() if self._grants else ("--skip-grant-tables",)),
            "--skip-networking=0",
            *as_user,
            *chosen,
        ]

    def _answers(self) -> bool:
        # It greets who connects, with its version.
        with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
            return b"MariaDB" in connection.recv(100)


class KinesisLocal(EmbeddedKinesisLocal):
    """kinesis-local where the tests have installed it."""

    def __init__(self, node: Path, script: Path) -> None:
        super().__init__(node=node, script=script)


class MiniStack(EmbeddedMiniStack):
    """MiniStack where the tests have installed it."""

    def __init__(self, program: Path) -> None:
        super().__init__(program=program)


class Kinesalite(KinesisLocal):
    """The npm package kinesalite, all in memory: a split or merge takes effect at once.

    Behind the last record of a closed shard it gives an empty answer, "0 behind" and with an iterator, before the end.
    """

    name = "kinesalite"

    def _command(self) -> list[str]:
        settings = {
            "port": self.port,
            "createStreamMs": 0,
            "deleteStreamMs": 0,
            "updateStreamMs": 0,
            "shardLimit": 10_000,
        }
        options = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        return [str(self.node), str(self.script), *options]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url, timeout=1):
                return True
        except urllib.error.HTTPError:
            # It answers nothing but signed calls.
            return True


def _ask(port: int, question: bytes) -> bytes:
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall(question)
        return connection.recv(100)


def _unprivileged() -> pwd.struct_passwd:
    """Return who runs what refuses to run as root."""
    return pwd.getpwnam("nobody")
