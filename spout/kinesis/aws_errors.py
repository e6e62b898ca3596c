"""Translates botocore's errors to those of `spout.kinesis`, each with its place and what to do. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from botocore import exceptions
from botocore.eventstream import ParserError
from botocore.parsers import ResponseParserError

from kinesis_trident.common.visible_text import make_visible, shorten
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    InUseError,
    InvalidPositionError,
    IteratorExpiredError,
    KeyAwayError,
    KeyUnusableError,
    KinesisError,
    ShardMissingError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
    UnreadableAnswerError,
)
from kinesis_trident.spout.kinesis.remedies import is_of_the_clock

_TOO_MANY_CALLS = (
    "the service limits calls of this kind: run fewer queries at a time with these credentials, or list the shards "
    "less often (describeShardInterval)"
)
_INVALID = {"InvalidArgumentException", "SerializationException", "ValidationException"}
_THROTTLES = {
    "KMSThrottlingException": (
        "AWS KMS limits calls for the stream's key: request a higher KMS quota, read less often (minFetchPeriod), or "
        "write in fewer requests"
    ),
    "ProvisionedThroughputExceededException": (
        "a shard allows 5 reads and 2 MB a second for all readers, and 1,000 records and 1 MB a second for all "
        "writers: use fewer readers or writers, or more shards"
    ),
    **dict.fromkeys(
        (
            "LimitExceededException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
        ),
        _TOO_MANY_CALLS,
    ),
}
_DENIALS = {
    "AccessDenied": "the credentials lack the permission that the message names: grant it",
    "AccessDeniedException": "the credentials lack the permission that the message names: grant it",
    "ExpiredToken": "the session token has expired: use a new one, or a role or profile that refreshes it",
    "ExpiredTokenException": "the session token has expired: use a new one, or a role or profile that refreshes it",
    "IDPRejectedClaim": "the web identity's token was refused: check the role's trust policy and the token's issuer",
    "IncompleteSignature": "the credentials are incomplete: check key id, secret and session token",
    "InvalidClientTokenId": "AWS does not know the access key: check the credentials and the region",
    "InvalidIdentityToken": "the web identity's token is not valid: check the option webIdentityTokenFile",
    "InvalidSignatureException": "the signature is wrong: check the secret key and this machine's clock",
    "KMSAccessDeniedException": (
        "the credentials may not use the stream's KMS key: allow kms:Decrypt to read, kms:GenerateDataKey to write"
    ),
    "MissingAuthenticationTokenException": "the call was not signed: give credentials",
    "OptInRequired": "the account is not subscribed to Kinesis in this region: subscribe it",
    "SignatureDoesNotMatch": "the signature is wrong: check the secret key and this machine's clock",
    "UnrecognizedClientException": "AWS does not know the access key: check the credentials and the region",
}
_REFUSALS: dict[str, tuple[type[KinesisError], str]] = {
    "ExpiredIteratorException": (IteratorExpiredError, "an iterator is valid for five minutes"),
    "InvalidArgumentException": (
        KinesisError,
        "check whether the position belongs to another stream, or to one that was deleted and created again",
    ),
    "KMSDisabledException": (KeyAwayError, "the stream's KMS key is disabled: enable it"),
    "KMSInvalidStateException": (
        KeyAwayError,
        "the stream's KMS key is disabled or pending deletion: check its state in KMS, cancel the deletion, enable it",
    ),
    "KMSNotFoundException": (
        KeyUnusableError,
        "the KMS key does not exist: encrypt the stream with another one. Records under a deleted key stay unreadable: "
        "go on after them",
    ),
    "KMSOptInRequired": (KeyUnusableError, "the account is not subscribed to AWS KMS: subscribe it"),
    "ResourceInUseException": (
        InUseError,
        "the stream or consumer is being created, changed or deleted: try again when it is ACTIVE",
    ),
    "ResourceNotFoundException": (
        StreamMissingError,
        "check the stream's name, the region and the account of the credentials",
    ),
}
_SUBSCRIBED = (
    "a consumer can have one subscription to a shard, and a new one only after 5 seconds: use this consumer in one "
    "application only"
)
_OF_A_POSITION = {"GetShardIterator", "SubscribeToShard"}
_CLOCK = (
    "the request arrived minutes before or after the time at which it was signed: check this machine's clock"
)
_PASSING = {
    "ExpiredNextTokenException": "a listing took longer than five minutes: try again",
    "InternalFailure": "",
    "InternalFailureException": "",
    "InternalServerError": "",
    "RequestTimeout": "the request arrived incomplete: check the network",
    "RequestTimeoutException": "the request arrived incomplete: check the network",
    "ServiceUnavailable": "",
}
_NO_CREDENTIALS = (
    exceptions.InvalidConfigError,
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.SSOError,
    exceptions.TokenRetrievalError,
    exceptions.UnauthorizedSSOTokenError,
)


_LOCAL: tuple[tuple[tuple[type[Exception], ...], type[KinesisError], str], ...] = (
    (
        _NO_CREDENTIALS,
        AccessDeniedError,
        "provide credentials by the environment, a profile, a role (options profile, roleArn) or the machine itself, "
        "on the driver and on all executors",
    ),
    (
        (exceptions.NoRegionError,),
        KinesisError,
        "set the option region or streamARN, or AWS_DEFAULT_REGION, on the driver and on all executors",
    ),
    (
        (exceptions.CredentialRetrievalError, exceptions.MetadataRetrievalError),
        Unavailable,
        "the credentials are not available: check their source (container or instance metadata, role, process)",
    ),
    (
        (exceptions.SSLError,),
        Unavailable,
        "the TLS handshake failed: check that endpointUrl supports https, and check the network",
    ),
    (
        (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError),
        Unavailable,
        "check the option endpointUrl, the network and the proxy settings",
    ),
    ((OSError,), Unavailable, "the connection broke or timed out: check the network"),
    (
        (ParserError, ResponseParserError, TypeError),
        UnreadableAnswerError,
        "check that the endpoint is a Kinesis endpoint",
    ),
)


_EMPTY = "the answer is empty, as Kinesis gives none: check the proxy and the network"


def _is_verification(error: BaseException) -> bool:
    """Return whether a TLS handshake failed for the server's certificate, which is permanent."""
    seen: list[BaseException] = []
    ask: list[object] = [error]
    while ask:
        one = ask.pop()
        if isinstance(one, ssl.SSLCertVerificationError):
            return True
        if isinstance(one, BaseException) and one not in seen:
            seen.append(one)
            given = getattr(one, "kwargs", {}).get("error")
            ask += [one.__cause__, one.__context__, given, getattr(one, "reason", None), *one.args]
    return False


def translate_error(error: Exception, what: str, where: str) -> KinesisError:
    """Return the error to raise instead of botocore's; `what` was called, and `where` (region and endpoint)."""
    place = f"{what} in {where}"
    if isinstance(error, exceptions.ClientError):
        return _refusal_error(error, place)
    if isinstance(error, exceptions.SSLError) and _is_verification(error):
        return KinesisError(
            f"{place}: {str(error).rstrip('.')}; check endpointUrl and this machine's trusted authorities"
        )
    for kinds, kind, hint in _LOCAL:
        if isinstance(error, kinds):
            return kind(f"{place}: {_quote(error).rstrip('.')}; {hint}")
    return KinesisError(f"{place}: {_quote(error)}")


def _quote(error: Exception) -> str:
    return make_visible(shorten(str(error)))


def _refusal_error(error: exceptions.ClientError, place: str) -> KinesisError:
    answer = error.response.get("Error", {})
    # Any endpoint may have said this, at any length.
    code, message = (make_visible(shorten(str(answer.get(name, "")))) for name in ("Code", "Message"))
    is_blank = not str(answer.get("Message", "")).strip()
    kind: type[KinesisError]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "ResourceNotFoundException" and message.startswith("Shard "):
        kind, hint = ShardMissingError, "it is past the stream's retention, or belongs to another stream"
    elif is_of_the_clock(code, message):
        kind, hint = Unavailable, _CLOCK
    elif status == HTTPStatus.BAD_REQUEST and code in ("", str(status)) and is_blank:
        kind, hint = Unavailable, _EMPTY
    else:
        kind, hint = _classify(code, status)
        if kind is InUseError and error.operation_name == "SubscribeToShard":
            hint = _SUBSCRIBED
        if code == "InvalidArgumentException" and error.operation_name in _OF_A_POSITION:
            kind = InvalidPositionError
    said = ": ".join(part for part in (place, code, message) if part).rstrip(".")
    return kind(f"{said}; {hint}")


def _classify(code: str, status: int) -> tuple[type[KinesisError], str]:
    if code in _DENIALS:
        return AccessDeniedError, _DENIALS[code]
    if code in _THROTTLES or status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError, _THROTTLES.get(code, _TOO_MANY_CALLS)
    if code in _PASSING or status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT:
        return Unavailable, _PASSING.get(code) or f"HTTP {status}"
    return _REFUSALS.get(code, (KinesisError, f"HTTP {status}"))


def code_of(error: KinesisError) -> str:
    """Return the error code of Kinesis; empty if Kinesis did not refuse the call."""
    return str(_refusal_of(error).get("Error", {}).get("Code", ""))


def status_of(error: KinesisError) -> int:
    """Return the HTTP status with which Kinesis, or a proxy before it, refused a call; 0 if it did not."""
    return int(_refusal_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _refusal_of(error: KinesisError) -> Mapping[str, Any]:
    cause = error.__cause__
    return cause.response if isinstance(cause, exceptions.ClientError) else {}


def is_invalid(error: KinesisError) -> bool:
    """Return whether Kinesis refused a call as invalid."""
    return code_of(error) in _INVALID
