"""GetRecords answers of up to 10 MiB, read from the socket into one buffer.

botocore reads an answer in pieces of 64 KiB through three layers of copies, which costs as much as decoding it. A
`before-send` handler is its way to send a request otherwise: this one has botocore's own HTTP session send it, with its
connections, proxies and certificates, and reads what comes back by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import ReadTimeoutError as UrllibReadTimeoutError

__all__ = ["read_at_once"]


def read_at_once(client: Any) -> None:
    """Have a boto client of Kinesis read each GetRecords answer at once; its errors stay botocore's."""
    session = client._endpoint.http_session

    def send(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        request.stream_output = True
        answer = session.send(request)
        return AWSResponse(answer.url, answer.status_code, answer.headers, _Whole(_body(answer, request)))

    client.meta.events.register("before-send.kinesis.GetRecords", send)


def _body(answer: AWSResponse, request: AWSPreparedRequest) -> bytes:
    """The body, or what there is of it.

    Raises:
        ReadTimeoutError, ConnectionClosedError, HTTPClientError: as botocore's own session.
    """
    try:
        body: bytes = answer.raw.read()
    except UrllibReadTimeoutError as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except ProtocolError as error:
        raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
    except HTTPError as error:
        raise HTTPClientError(error=error) from error
    return body


class _Whole:
    """A body in the one piece that `AWSResponse.content` asks for: joining it copies nothing."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body
