"""Creates botocore sessions from the options: credentials, role, region, endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    AssumeRoleWithWebIdentityCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
    RefreshableCredentials,
)
from botocore.exceptions import InvalidConfigError, NoCredentialsError

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.kinesis.remedies import RequestClock, sign_by
from kinesis_trident.spout.kinesis.wire.calls import KinesisCalls
from kinesis_trident.spout.kinesis.wire.connections import CONNECT_SECONDS, READ_SECONDS
from kinesis_trident.spout.options.connection import ConnectionOptions

_LOCALSTACK = "localstack"
_LOCALSTACK_REGION = "us-east-1"
_AGENT = "lib/kinesis-trident"


def open_session(options: ConnectionOptions, clock: RequestClock | None = None) -> botocore.session.Session:
    """Open a session, which finds the credentials anew; its clients sign by `clock`.

    Raises:
        botocore.exceptions.BotoCoreError: unknown profile, or no credentials to assume a role with.
    """
    clock = clock or RequestClock()
    session = _new_base_session(options, clock)
    return session if options.role_arn is None else _assume_role(session, options.role_arn, options, clock)


def find_fixed_keys(session: botocore.session.Session) -> tuple[str | None, ...] | None:
    """Return the credentials of a session that keeps them as they are; None if there are none, or it renews them.

    Raises:
        botocore.exceptions.BotoCoreError: their source does not answer.
    """
    found = session.get_credentials()
    if found is None or isinstance(found, RefreshableCredentials):
        return None
    return found.access_key, found.secret_key, found.token


def create_calls(
    session: botocore.session.Session,
    options: ConnectionOptions,
    clock: RequestClock,
    steady: Callable[[], float] = time.monotonic,
) -> tuple[KinesisCalls, str]:
    """Create the calls of Kinesis with the credentials of a session; return them with their region and endpoint.

    Args:
        session: has the credentials.
        options: of the connection.
        clock: the time to sign with.
        steady: seconds that never step back, for the deadlines of answers.

    Raises:
        botocore.exceptions.BotoCoreError: no region, or the source of the credentials does not answer.
    """
    client = session.create_client(
        "kinesis",
        region_name=_region(options),
        endpoint_url=_endpoint("kinesis", options.endpoint_url),
        # It is asked about arguments that decide on the endpoint, which are not all.
        config=Config(user_agent_extra=_AGENT, parameter_validation=False),
    )
    where = f"{client.meta.region_name} ({client.meta.endpoint_url})"
    return KinesisCalls(session, client, clock, steady), where


def create_client(
    service: str, options: ConnectionOptions, *, region: str | None = None, endpoint_url: str | None = None
) -> Any:
    """Create a boto client of another service, with the credentials of the options, and by default their region.

    Raises:
        botocore.exceptions.BotoCoreError: as `open_session` and `create_calls`.
    """
    local = _LOCALSTACK if options.endpoint_url == _LOCALSTACK else None
    return open_session(options).create_client(
        service,
        region_name=region or _region(options),
        endpoint_url=_endpoint(service, endpoint_url or local),
        config=Config(
            retries={"total_max_attempts": options.client_num_retries + 1, "mode": "standard"},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            user_agent_extra=_AGENT,
        ),
    )


def _new_session(options: ConnectionOptions, clock: RequestClock) -> botocore.session.Session:
    session = botocore.session.Session(profile=options.profile)
    sign_by(clock, session)
    return session


def _new_base_session(options: ConnectionOptions, clock: RequestClock) -> botocore.session.Session:
    session = _new_session(options, clock)
    if options.aws_access_key_id is not None and options.aws_secret_access_key is not None:
        session.set_credentials(
            options.aws_access_key_id, options.aws_secret_access_key, options.session_token
        )
    elif options.endpoint_url == _LOCALSTACK and session.get_credentials() is None:
        # LocalStack accepts any credentials, but botocore sends nothing without them.
        session.set_credentials("test", "test")
    return session


def _region(options: ConnectionOptions) -> str | None:
    if options.region is None and options.endpoint_url == _LOCALSTACK:
        return _LOCALSTACK_REGION
    return options.region


def _endpoint(service: str, given: str | None) -> str | None:
    if given != _LOCALSTACK:
        return given
    try:
        from localstack_client.config import get_service_endpoint
    except ModuleNotFoundError as error:
        msg = (
            "option endpointUrl is localstack, which needs the package localstack-client. "
            "Run pip install 'kinesis-trident[localstack]', on the executors too, or set the endpoint's URL"
        )
        raise OptionsError(msg) from error

    url: str = get_service_endpoint(service)
    return url


def _assume_role(
    source: botocore.session.Session, role: str, options: ConnectionOptions, clock: RequestClock
) -> botocore.session.Session:
    """Return a session with the role's credentials, which it refreshes before they expire.

    The role is assumed with the credentials of `source`, or with the current token of a token file.
    """
    at = options.sts_endpoint or (_LOCALSTACK if options.endpoint_url == _LOCALSTACK else None)

    def create(service: str, **settings: Any) -> Any:
        return source.create_client(
            service, region_name=_region(options), endpoint_url=_endpoint(service, at), **settings
        )

    extra = {"RoleSessionName": options.role_session_name, "ExternalId": options.role_external_id}
    given = {name: value for name, value in extra.items() if value is not None}
    fetcher: AssumeRoleCredentialFetcher | AssumeRoleWithWebIdentityCredentialFetcher
    if options.web_identity_token_file is not None:
        token = _TokenFile(options.web_identity_token_file)
        fetcher = AssumeRoleWithWebIdentityCredentialFetcher(create, token, role, extra_args=given)
    else:
        credentials = source.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        fetcher = AssumeRoleCredentialFetcher(create, credentials, role, extra_args=given)
    session = _new_session(options, clock)
    session.register_component("credential_provider", CredentialResolver([_RoleProvider(fetcher)]))
    return session


class _TokenFile:
    """Reads the token each time, because the platform replaces it before it expires."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self) -> str:
        try:
            return Path(self._path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            msg = f"{error} (option webIdentityTokenFile)"
            raise InvalidConfigError(error_msg=msg) from error


class _RoleProvider(CredentialProvider):
    METHOD = "assume-role"
    CANONICAL_NAME = "custom-assume-role"

    def __init__(
        self, fetcher: AssumeRoleCredentialFetcher | AssumeRoleWithWebIdentityCredentialFetcher
    ) -> None:
        super().__init__()
        self._fetcher = fetcher

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(self._fetcher.fetch_credentials, self.METHOD)
