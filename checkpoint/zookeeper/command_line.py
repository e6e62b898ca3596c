"""Command lines for people to copy into a shell."""

from __future__ import annotations

import os
import shlex

from kinesis_trident.checkpoint.zookeeper.client import Sasl, ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.tls import Tls

DEFAULT_ROOT = "/kinesis-trident"
"""The option `zookeeper.root`, if it is not given."""


def command_line(zookeeper: ZooKeeperConfig, root: str, *words: str, names: int = 1) -> str:
    """Return the line that runs a command, such as `status orders`, with the options that lead to this ZooKeeper.

    An option that this process has from its environment is left out. `PASSWORD` stands for a password.

    Args:
        zookeeper: the settings that lead there.
        root: the option `zookeeper.root`.
        words: the command, the application if it is about one, other words, and its options.
        names: the number of words after the command that are names: they may begin with dashes.
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
    command, given = words[:1], words[1:]
    if any(word.startswith("-") for word in given[:names]):
        # An application of such a name would be taken for an option: names stand after two dashes, and options before.
        options = (at for at, word in enumerate(given) if at >= names and word.startswith("--"))
        others = next(options, len(given))
        return shlex.join(
            ["kinesis-trident", *login, *command, *given[others:], *where, "--", *given[:others]]
        )
    return shlex.join(["kinesis-trident", *login, *words, *where])


def _secret(option: str, variable: str, value: str) -> list[str]:
    return [option, f"{value.partition(':')[0]}:PASSWORD"] if _is_new(variable, value) else []


def _is_new(variable: str, value: str) -> bool:
    return bool(value) and os.environ.get(variable) != value
