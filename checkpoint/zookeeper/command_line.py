"""Command lines for people to copy into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from kinesis_trident.checkpoint.zookeeper.client import Sasl, ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.tls import Tls

DEFAULT_ROOT = "/kinesis-trident"
"""The option `zookeeper.root`, if it is not given."""


def command_line(
    zookeeper: ZooKeeperConfig, root: str, command: str, *names: str, options: Iterable[str] = ()
) -> str:
    """Return the line that runs a command, such as `status orders`, with the options that lead to this ZooKeeper.

    An option that this process has from its environment is left out. `PASSWORD` stands for a password.

    Args:
        zookeeper: the settings that lead there.
        root: the option `zookeeper.root`.
        command: its name.
        names: the application if it is about one, and its other words: any of them may begin with dashes.
        options: of the command, with their values.
    """
    tls, sasl = zookeeper.tls or Tls(), zookeeper.sasl or Sasl("", "")
    login = [
        *_secret("--digest", "KINESIS_TRIDENT_ZOOKEEPER_DIGEST", zookeeper.digest or ""),
        *_secret("--sasl", "KINESIS_TRIDENT_ZOOKEEPER_SASL", f"{sasl.username}:{sasl.password}".strip(":")),
        *(["--sasl-mechanism", sasl.mechanism] if sasl.mechanism != Sasl("", "").mechanism else []),
    ]
    for name, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        login += [f"--tls-{name}", path] if path else []
    login += [] if tls.verify else ["--no-tls-verify"]
    login += [] if tls.check_hostname else ["--no-tls-check-hostname"]
    where = ["--zookeeper", zookeeper.hosts] if _is_new("KINESIS_TRIDENT_ZOOKEEPER", zookeeper.hosts) else []
    where += ["--root", root] if root != DEFAULT_ROOT else []
    words = [*names, *options, *where]
    if any(name.startswith("-") for name in names):
        # Such a name would be taken for an option: names stand after two dashes, and options before.
        words = [*options, *where, "--", *names]
    return shlex.join(["kinesis-trident", *login, command, *words])


def _secret(option: str, variable: str, value: str) -> list[str]:
    return [option, f"{value.partition(':')[0]}:PASSWORD"] if _is_new(variable, value) else []


def _is_new(variable: str, value: str) -> bool:
    return bool(value) and os.environ.get(variable) != value
