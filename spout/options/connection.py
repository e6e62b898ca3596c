"""The options for the stream, its endpoint and the credentials; reading and writing share them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kinesis_trident.common.redaction import redact
from kinesis_trident.spout.options import parsers
from kinesis_trident.spout.options.table import option, options_of


@dataclass(frozen=True, kw_only=True, repr=False)
class ConnectionOptions:
    """The stream and how to connect to it. Picklable and hashable; `endpoint_url` may be `localstack`."""

    stream_name: str = option(
        "streamName",
        parsers.single_name,
        None,
        "The stream's name; this or `streamARN` is required.",
    )
    stream_arn: str | None = option(
        "streamARN",
        parsers.arn,
        None,
        "The stream's ARN, which includes its region; needed for a stream in another account.",
    )
    region: str | None = option(
        "region",
        parsers.text,
        None,
        "The stream's region; by default the one that boto3 finds.",
    )
    endpoint_url: str | None = option(
        "endpointUrl",
        parsers.endpoint,
        None,
        "The endpoint, if not the region's; `localstack` takes it from localstack-client (extra `localstack`).",
        "endpoint",
    )
    profile: str | None = option("profile", parsers.text, None, "A profile of the AWS configuration files.")
    role_arn: str | None = option(
        "roleArn",
        parsers.text,
        None,
        "A role to assume; its credentials are refreshed before they expire.",
        "stsRoleArn",
        "awsSTSRoleARN",
    )
    role_session_name: str | None = option(
        "roleSessionName",
        parsers.text,
        None,
        "The name of the role's session; by default botocore generates one.",
        "stsSessionName",
        "awsSTSSessionName",
    )
    role_external_id: str | None = option(
        "roleExternalId", parsers.text, None, "The external id that the role's trust policy requires."
    )
    web_identity_token_file: str | None = option(
        "webIdentityTokenFile",
        parsers.text,
        None,
        "A file with an OIDC token, such as Kubernetes refreshes; `roleArn` is assumed with the token alone.",
    )
    sts_endpoint: str | None = option(
        "stsEndpoint", parsers.endpoint, None, "The STS endpoint, if not the region's.", "stsEndpointUrl"
    )
    aws_access_key_id: str | None = option(
        "awsAccessKeyId",
        parsers.text,
        None,
        "An access key id in the query itself; prefer a profile or a role.",
        "awsAccessKey",
        secret=True,
    )
    aws_secret_access_key: str | None = option(
        "awsSecretAccessKey",
        parsers.text,
        None,
        "The secret key of `awsAccessKeyId`.",
        "awsSecretKey",
        secret=True,
    )
    session_token: str | None = option(
        "sessionToken",
        parsers.text,
        None,
        "The session token of temporary credentials.",
        "awsSessionToken",
        secret=True,
    )
    client_num_retries: int = option(
        "clientNumRetries",
        parsers.count(0),
        "5",
        "How many times a failed call is repeated; reads of records have their own rules.",
        "client.numRetries",
        "numRetries",
    )

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams."""
        return tuple(self.stream_name.split(","))

    @property
    def arns(self) -> dict[str, str]:
        """The streams' ARNs by stream name, for those given by ARN."""
        return dict(zip(self.streams, self.stream_arn.split(","), strict=True)) if self.stream_arn else {}

    def __repr__(self) -> str:
        """Show the values that differ from the defaults, without secrets."""
        lines = options_of(type(self))
        said = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                plain = redact(value) if isinstance(value, str) else value
                said.append(f"{item.name}={'***' if lines[item.name].secret else repr(plain)}")
        return f"{type(self).__name__}({', '.join(said)})"
