"""Finds where a call goes, and in which region and name it is signed: botocore's rules of endpoints decide.

The host may depend on the account of a stream's ARN, on the kind of the call, and on the configuration. botocore
builds a request, which a handler of its event `before-call` looks at and does not let it send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from botocore import xform_name
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from kinesis_trident.spout.kinesis.wire.signing import Signer

_ARNS = ("ConsumerARN", "StreamARN")
"""The parameters that an endpoint may depend on."""


_KEEP = "/?%:@!$&'()*+,;=~"
"""The characters that stand for themselves in the path and the query of a request (RFC 3986)."""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """What all requests of one call share.

    `origin` is scheme and authority of the URL, `path` the rest of it; `headers` are lines, all but those of the
    signature and of the body's length.
    """

    url: str
    origin: str
    path: str
    headers: str
    signer: Signer


class CallTargets:
    """Finds the targets of calls, each once. Thread-safe.

    Args:
        client: a boto client of Kinesis, whose calls are sent nowhere from now on.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._found: dict[tuple[str, ...], CallTarget] = {}
        client.meta.events.register("before-call.kinesis", _look)

    def find(self, call: str, arguments: Mapping[str, Any]) -> CallTarget:
        """Return the target of a call, as the service names it.

        Raises:
            botocore.exceptions.BotoCoreError: there is no endpoint for its arguments.
        """
        asked = (call, *(str(arguments.get(name, "")) for name in _ARNS))
        found = self._found.get(asked)
        if found is None:
            which = {name: arguments[name] for name in _ARNS if name in arguments}
            found = self._found[asked] = _target(call, getattr(self._client, xform_name(call))(**which))
        return found


def _look(params: Mapping[str, Any], request_signer: Any, context: Mapping[str, Any], **_: object) -> Any:
    """Give botocore what it would have sent as the answer."""
    given = context.get("signing", {})
    parts, own = urlsplit(params["url"]), params["url_path"]
    # Other protocols than JSON have the call in the path.
    path = parts.path if own == "/" else parts.path.removesuffix(own)
    answer = {
        "url": parts._replace(path=path or "/").geturl(),
        "agent": params["headers"].get("User-Agent", ""),
        "region": given.get("region") or request_signer.region_name,
        "service": given.get("signing_name") or request_signer.signing_name,
    }
    return AWSResponse(params["url"], 200, HTTPHeaders(), None), answer


def _target(call: str, found: Mapping[str, str]) -> CallTarget:
    url = found["url"]
    parts = urlsplit(url)
    region, service = found["region"], found["service"]
    # The beginning of what botocore would sign: method, path, query, the header host.
    asked = SigV4Auth(Credentials("-", "-"), service, region).canonical_request(
        AWSRequest("POST", url, data=b"")
    )
    _, path, query, host = asked.split("\n")[:4]
    headers = {
        "host": host.removeprefix("host:"),
        "content-type": "application/x-amz-json-1.1",
        "x-amz-target": f"Kinesis_20131202.{call}",
    }
    more = {"user-agent": found["agent"], "accept-encoding": "identity"}
    return CallTarget(
        url=url,
        origin=f"{parts.scheme}://{parts.netloc}",
        path=quote(parts.path or "/", _KEEP) + (f"?{quote(parts.query, _KEEP)}" if parts.query else ""),
        headers="".join(f"{name.title()}: {value}\r\n" for name, value in (headers | more).items()),
        signer=Signer(headers, path, query, region, service),
    )
