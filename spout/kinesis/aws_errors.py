"""botocore's errors as those of `spout.kinesis`, each saying where it happened and what to do. Pure."""

from __future__ import annotations

import ssl

from botocore import exceptions
from botocore.eventstream import ParserError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    InUseError,
    IteratorExpiredError,
    KinesisError,
    ShardMissingError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)

__all__ = ["translated"]

_TOO_MANY_CALLS = (
    "the service takes fewer calls of this kind for now: run fewer queries with these credentials at a time, or list "
    "the shards less often (describeShardInterval)"
)
_THROTTLES = {
    "KMSThrottlingException": (
        "AWS KMS takes fewer calls for the stream's key for now: ask for a higher quota of KMS, or read less often "
        "(minFetchPeriod)"
    ),
    "ProvisionedThroughputExceededException": (
        "a shard gives 5 reads and 2 MB a second to all its readers, and takes 1,000 records and 1 MB from all its "
        "writers: have fewer, or more shards"
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
    "AccessDenied": "the credentials lack a permission: see the message for which",
    "AccessDeniedException": "the credentials lack a permission: see the message for which",
    "ExpiredToken": "the session token has expired: get a new one, or use a role or profile that refreshes",
    "ExpiredTokenException": "the session token has expired: get a new one, or use a role or profile that refreshes",
    "IDPRejectedClaim": "the web identity's token was refused: see the role's trust policy, and who issued the token",
    "IncompleteSignature": "the credentials are not complete",
    "InvalidClientTokenId": "AWS does not know the access key: check the credentials and the region",
    "InvalidIdentityToken": "the web identity's token is not valid: see the option webIdentityTokenFile",
    "InvalidSignatureException": "the secret key is wrong, or this machine's clock is",
    "KMSAccessDeniedException": "the credentials may not use the stream's KMS key: allow kms:Decrypt",
    "MissingAuthenticationTokenException": "the call was not signed: give credentials",
    "OptInRequired": "the account is not subscribed to Kinesis in this region",
    "SignatureDoesNotMatch": "the secret key is wrong, or this machine's clock is",
    "UnrecognizedClientException": "AWS does not know the access key: check the credentials and the region",
}
_REFUSALS: dict[str, tuple[type[KinesisError], str]] = {
    "ExpiredIteratorException": (IteratorExpiredError, "an iterator is good for five minutes"),
    "InvalidArgumentException": (
        KinesisError,
        "is the position of another stream, or of one that was deleted and created again?",
    ),
    "KMSDisabledException": (KinesisError, "the stream's KMS key is disabled: enable it"),
    "KMSInvalidStateException": (
        KinesisError,
        "the stream's KMS key cannot be used as it is (disabled, or about to be deleted): see its state in KMS",
    ),
    "KMSNotFoundException": (
        KinesisError,
        "the stream's KMS key is not there: restore it, or have the stream encrypted with another one",
    ),
    "KMSOptInRequired": (KinesisError, "the account is not subscribed to AWS KMS: subscribe it"),
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
    "a shard gives a consumer one subscription at a time, and a new one only 5 seconds after the last: let no other "
    "application use this consumer"
)
_PASSING = {
    "ExpiredNextTokenException": "a listing took longer than five minutes and was given up",
    "InternalFailure": "",
    "InternalFailureException": "",
    "InternalServerError": "",
    "RequestExpired": "the request came minutes after it was signed: was this process paused, or is its clock wrong?",
    "RequestTimeout": "the request did not come in whole: check the network",
    "RequestTimeoutException": "the request did not come in whole: check the network",
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
        "give credentials by the environment, a profile, a role (options profile, roleArn) or the machine itself, on "
        "the driver and on all executors",
    ),
    (
        (exceptions.NoRegionError,),
        KinesisError,
        "set the option region or streamARN, or AWS_DEFAULT_REGION, on the driver and on all executors",
    ),
    (
        (exceptions.CredentialRetrievalError, exceptions.MetadataRetrievalError),
        Unavailable,
        "the credentials cannot be had now: check what gives them (container or instance metadata, role, process)",
    ),
    (
        (exceptions.SSLError,),
        Unavailable,
        "the TLS handshake broke off: check that endpointUrl is one of https, and the network",
    ),
    (
        (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError),
        Unavailable,
        "check the option endpointUrl, the network and the proxy settings",
    ),
    ((HTTPError, OSError), Unavailable, "the connection broke, or brought nothing for too long"),
    ((ParserError, ResponseParserError), Unavailable, "check that the endpoint is one of Kinesis"),
)


_REQUEST_TIMEOUT = 408


def _is_verification(error: BaseException) -> bool:
    """Whether a TLS handshake failed because the server's certificate was not accepted: that does not pass."""
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


def translated(error: Exception, what: str, where: str) -> KinesisError:
    """The error to raise in place of botocore's: `what` was asked for, and `where` (region and endpoint)."""
    place = f"{what} in {where}"
    if isinstance(error, exceptions.ClientError):
        return _refused(error, place)
    if isinstance(error, exceptions.SSLError) and _is_verification(error):
        return KinesisError(
            f"{place}: {str(error).rstrip('.')}; check endpointUrl and the authorities that this machine trusts"
        )
    for kinds, kind, hint in _LOCAL:
        if isinstance(error, kinds):
            return kind(f"{place}: {str(error).rstrip('.')}; {hint}")
    return KinesisError(f"{place}: {error}")


def _refused(error: exceptions.ClientError, place: str) -> KinesisError:
    answer = error.response.get("Error", {})
    code, message = str(answer.get("Code", "")), str(answer.get("Message", ""))
    kind: type[KinesisError]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "ResourceNotFoundException" and message.startswith("Shard "):
        kind, hint = ShardMissingError, "it is past the stream's retention, or of another stream"
    else:
        kind, hint = _meaning(code, status)
        if kind is InUseError and error.operation_name == "SubscribeToShard":
            hint = _SUBSCRIBED
    said = ": ".join(part for part in (place, code, message) if part).rstrip(".")
    return kind(f"{said}; {hint}")


def _meaning(code: str, status: int) -> tuple[type[KinesisError], str]:
    if code in _DENIALS:
        return AccessDeniedError, _DENIALS[code]
    if code in _THROTTLES:
        return ThrottledError, _THROTTLES[code]
    if code in _PASSING or status >= 500 or status == _REQUEST_TIMEOUT:
        return Unavailable, _PASSING.get(code) or f"HTTP {status}"
    return _REFUSALS.get(code, (KinesisError, f"HTTP {status}"))
