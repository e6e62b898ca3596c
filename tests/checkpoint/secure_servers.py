"""ZooKeeper servers that ask for TLS or for a SASL login."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper

OTHER_USES = (
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
"""Of a key in a certificate, besides signatures."""


class SecureZooKeeper(EmbeddedZooKeeper):
    """With a TLS port, or with SASL logins; `key_ids`: as in `certificates`."""

    def __init__(self, folder: Path, *, tls: bool, key_ids: bool = True) -> None:
        super().__init__(folder)
        self._tls = tls
        if tls:
            certificates(folder, key_ids=key_ids)

    def _command(self) -> list[str]:
        command = super()._command()
        config, jaas = self._folder / "zoo.cfg", self._folder / "jaas.conf"
        if self._tls:
            lines = [
                "secureClientPort=" + str(self.secure_port),
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={self._folder}/server.pem",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={self._folder}/ca.pem",
                "ssl.trustStore.type=PEM",
                "ssl.clientAuth=need",
            ]
        else:
            jaas.write_text(
                "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
                'user_spark="secret" user_other="secret2"; };\n'
            )
            command.insert(1, f"-Djava.security.auth.login.config={jaas}")
            lines = ["authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"]
        config.write_text(config.read_text() + "\n".join(lines) + "\n")
        return command

    @property
    def secure_port(self) -> int:
        return self._port + 1


def certificates(folder: Path, *, key_ids: bool = True, days: float = 30) -> None:
    """A certificate authority, and server and client certificates it has signed for 127.0.0.1, as PEM files.

    With `key_ids` they name the keys of their authority and what these are for, as RFC 5280 asks. `days`: from
    yesterday on; less than one has ended.
    """

    def certificate(
        name: str, issuer: str, signer: rsa.RSAPrivateKey, key: rsa.RSAPrivateKey
    ) -> x509.Certificate:
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        subject, by = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, issuer))
        made = (
            x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
        )
        if key_ids:
            of_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
            of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
            use = x509.KeyUsage(
                digital_signature=True, key_cert_sign=name == issuer, **dict.fromkeys(OTHER_USES, False)
            )
            for extension in (of_key, of_signer, use):
                made = made.add_extension(extension, critical=False)
        return made.sign(signer, hashes.SHA256())

    def pem(key: rsa.RSAPrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    keys = {name: rsa.generate_private_key(65537, 2048) for name in ("ca", "server", "client")}
    signed = {
        name: certificate(name, "ca", keys["ca"], key).public_bytes(serialization.Encoding.PEM)
        for name, key in keys.items()
    }
    (folder / "ca.pem").write_bytes(signed["ca"])
    (folder / "server.pem").write_bytes(pem(keys["server"]) + signed["server"])
    (folder / "client.pem").write_bytes(signed["client"])
    (folder / "client.key").write_bytes(pem(keys["client"]))
    (folder / "both.pem").write_bytes(pem(keys["client"]) + signed["client"])
