"""botocore's errors as those of `spout.kinesis`, each saying where it happened and what to do. Pure."""

from __future__ import annotations

from botocore import exceptions
from botocore.eventstream import ParserError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from spout.kinesis import (
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

_THROTTLES = {
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
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
    "ResourceInUseException": (
        InUseError,
        "a shard gives a consumer one subscription at a time, and a new one only 5 seconds after the last: let no "
        "other application use this consumer",
    ),
    "ResourceNotFoundException": (
        StreamMissingError,
        "check the stream's name, the region and the account of the credentials",
    ),
}
_PASSING = {"InternalFailure", "InternalFailureException", "InternalServerError", "ServiceUnavailable"}
_NO_CREDENTIALS = (
    exceptions.CredentialRetrievalError,
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
    ((exceptions.SSLError,), KinesisError, "check endpointUrl and the authorities that this machine trusts"),
    (
        (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError),
        Unavailable,
        "check the option endpointUrl, the network and the proxy settings",
    ),
    ((HTTPError, OSError), Unavailable, "the connection broke, or brought nothing for too long"),
    ((ParserError, ResponseParserError), Unavailable, "check that the endpoint is one of Kinesis"),
)


def translated(error: Exception, what: str, where: str) -> KinesisError:
    """The error to raise in place of botocore's: `what` was asked for, and `where` (region and endpoint)."""
    place = f"{what} in {where}"
    if isinstance(error, exceptions.ClientError):
        return _refused(error, place)
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
    said = ": ".join(part for part in (place, code, message) if part).rstrip(".")
    return kind(f"{said}; {hint}")


def _meaning(code: str, status: int) -> tuple[type[KinesisError], str]:
    if code in _DENIALS:
        return AccessDeniedError, _DENIALS[code]
    if code in _THROTTLES:
        return (
            ThrottledError,
            "a shard gives 5 reads and 2 MB a second to all its readers, and takes 1,000 records and 1 MB from all its "
            "writers: have fewer, or more shards",
        )
    if code in _PASSING or status >= 500:
        return Unavailable, f"HTTP {status}"
    return _REFUSALS.get(code, (KinesisError, f"HTTP {status}"))
