"""The options that locate an application's state in ZooKeeper; the source and `Acks` share them."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_trident.checkpoint.zookeeper.client import Sasl, ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.command_line import DEFAULT_ROOT
from kinesis_trident.checkpoint.zookeeper.tls import Tls
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.table import option


@dataclass(frozen=True, kw_only=True, repr=False)
class ZooKeeperOptions:
    """An application's name and its ZooKeeper connection. Times are in seconds; picklable and hashable."""

    application_name: str = option(
        "applicationName",
        parsers.text,
        None,
        "Required. Names the state in ZooKeeper; a query that starts takes over from a running one of the same name.",
        "consumerGroup",
    )
    zookeeper_hosts: str = option(
        "zookeeper.hosts", parsers.text, None, "Required. `host:port,host:port[/chroot]`."
    )
    zookeeper_root: str = option(
        "zookeeper.root",
        parsers.text,
        DEFAULT_ROOT,
        "The root node of all state.",
    )
    zookeeper_session_timeout: float = option(
        "zookeeper.sessionTimeout",
        parsers.timeout,
        "20s",
        "How long an operation waits for ZooKeeper before the query fails; also the session timeout.",
    )
    zookeeper_tls_ca: str | None = option(
        "zookeeper.tls.ca",
        parsers.text,
        None,
        "PEM file of the only certificate authorities to trust; switches TLS on.",
    )
    zookeeper_tls_cert: str | None = option(
        "zookeeper.tls.cert", parsers.text, None, "PEM file of the client certificate; switches TLS on."
    )
    zookeeper_tls_key: str | None = option(
        "zookeeper.tls.key",
        parsers.text,
        None,
        "PEM file of the client certificate's key, if it is in a separate file.",
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
        "Checks that the server's certificate names the host in `zookeeper.hosts`; `false` switches TLS on and skips "
        "the check.",
    )
    zookeeper_sasl_username: str | None = option(
        "zookeeper.sasl.username",
        parsers.text,
        None,
        "The user name of the SASL login; only this user can access the created nodes.",
    )
    zookeeper_sasl_password: str | None = option(
        "zookeeper.sasl.password", parsers.text, None, "The password of the SASL login.", secret=True
    )
    zookeeper_sasl_mechanism: str = option(
        "zookeeper.sasl.mechanism", parsers.text, "DIGEST-MD5", "The mechanism of the SASL login."
    )
    zookeeper_digest: str | None = option(
        "zookeeper.digest.password",
        parsers.text,
        None,
        "`user:password` to log in with; only this user can access the created nodes.",
        secret=True,
    )

    @property
    def zookeeper(self) -> ZooKeeperConfig:
        """Return the connection settings of ZooKeeper."""
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
