"""The options that say where an application's state stands in ZooKeeper: the source and `Acks` share them."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_trident.checkpoint.zookeeper.client import Sasl, Tls, ZooKeeperConfig
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.table import option

__all__ = ["ZooKeeperOptions"]


@dataclass(frozen=True, kw_only=True, repr=False)
class ZooKeeperOptions:
    """Whose state, and how to reach it. Times are in seconds; picklable and hashable."""

    application_name: str = option(
        "applicationName",
        parsers.text,
        None,
        "Required: names the state in ZooKeeper. Two queries under one name take over from each other.",
        "consumerGroup",
    )
    zookeeper_hosts: str = option(
        "zookeeper.hosts", parsers.text, None, "Required: `host:port,host:port[/chroot]`."
    )
    zookeeper_root: str = option(
        "zookeeper.root",
        parsers.text,
        "/kinesis-trident",
        "The node that everything is below.",
    )
    zookeeper_session_timeout: float = option(
        "zookeeper.sessionTimeout",
        parsers.timeout,
        "20s",
        "How long an operation waits for ZooKeeper before the query stops; also the session's timeout.",
    )
    zookeeper_tls_ca: str | None = option(
        "zookeeper.tls.ca",
        parsers.text,
        None,
        "PEM file of the authorities to trust, and no others; switches TLS on.",
    )
    zookeeper_tls_cert: str | None = option(
        "zookeeper.tls.cert", parsers.text, None, "PEM file of the certificate to show; switches TLS on."
    )
    zookeeper_tls_key: str | None = option(
        "zookeeper.tls.key",
        parsers.text,
        None,
        "PEM file of that certificate's key, if it is not in the same.",
    )
    zookeeper_tls_verify: bool = option(
        "zookeeper.tls.verify",
        parsers.boolean,
        "true",
        "`false` switches TLS on and accepts any certificate.",
    )
    zookeeper_tls_check_hostname: bool = option(
        "zookeeper.tls.checkHostname",
        parsers.boolean,
        "true",
        "The server's certificate must name the host as `zookeeper.hosts` does; `false` switches TLS on and accepts "
        "another name.",
    )
    zookeeper_sasl_username: str | None = option(
        "zookeeper.sasl.username",
        parsers.text,
        None,
        "The name for a SASL login; only who logs in so has access to the nodes made.",
    )
    zookeeper_sasl_password: str | None = option(
        "zookeeper.sasl.password", parsers.text, None, "The password for a SASL login.", secret=True
    )
    zookeeper_sasl_mechanism: str = option(
        "zookeeper.sasl.mechanism", parsers.text, "DIGEST-MD5", "The mechanism of the SASL login."
    )
    zookeeper_digest: str | None = option(
        "zookeeper.digest.password",
        parsers.text,
        None,
        "`user:password`: log in with it, and give only that user access to the nodes made.",
        secret=True,
    )

    @property
    def zookeeper(self) -> ZooKeeperConfig:
        """How to reach ZooKeeper."""
        tls = sasl = None
        checked = self.zookeeper_tls_verify and self.zookeeper_tls_check_hostname
        if self.zookeeper_tls_ca or self.zookeeper_tls_cert or not checked:
            tls = Tls(
                self.zookeeper_tls_ca,
                self.zookeeper_tls_cert,
                self.zookeeper_tls_key,
                self.zookeeper_tls_verify,
                self.zookeeper_tls_check_hostname,
            )
        if self.zookeeper_sasl_username and self.zookeeper_sasl_password:
            sasl = Sasl(
                self.zookeeper_sasl_username, self.zookeeper_sasl_password, self.zookeeper_sasl_mechanism
            )
        return ZooKeeperConfig(
            self.zookeeper_hosts, self.zookeeper_session_timeout, tls, sasl, self.zookeeper_digest
        )
