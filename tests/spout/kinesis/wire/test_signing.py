"""Requests go where botocore would send them, and are signed as it would sign them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis.wire.endpoints import CallTargets
from kinesis_trident.spout.kinesis.wire.signing import AccessKeys

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
CONSUMER = f"{ARN}/consumer/app:1"
TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1))  # noqa: DTZ001
URLS = [
    None,
    "http://127.0.0.1:4567",
    "https://[::1]",
    "http://localhost:80/a b/%7e/{0}?z=1&a=2&a=",
    "https://x/",
]


def targets(url: str | None, **more: Any) -> CallTargets:
    session = botocore.session.Session()
    session.set_credentials("AKID", "secret")
    config = Config(parameter_validation=False, user_agent_extra="lib/x {0}", **more)
    return CallTargets(
        session.create_client("kinesis", region_name="eu-west-1", endpoint_url=url, config=config)
    )


FOUND = [targets(url) for url in URLS]


def sent_with(lines: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in lines.splitlines())


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(FOUND),
    st.sampled_from(["GetRecords", "PutRecords", "ListShards"]),
    st.builds(AccessKeys, TEXTS, TEXTS, st.none() | TEXTS | st.just(" a  b\t")),
    TIMES,
    st.binary(max_size=200),
)
def test_a_signature_is_botocores(
    found: CallTargets, call: str, keys: AccessKeys, at: datetime, body: bytes
) -> None:
    target = found.find(call, {})
    ours = sent_with(target.signer.sign(keys, at.replace(tzinfo=UTC), body))
    names = ours["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name.lower(): value for name, value in sent_with(target.headers).items()}
    signed = {name: headers[name] for name in names if name in headers and name != "host"}
    request = AWSRequest("POST", target.url, signed, body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda *_: at.replace(tzinfo=None))
        SigV4Auth(Credentials(*keys), "kinesis", "eu-west-1").add_auth(request)
    assert ours["Authorization"] == request.headers["Authorization"]
    assert ours["X-Amz-Date"] == request.headers["X-Amz-Date"]
    token = request.headers["X-Amz-Security-Token"]
    assert ours.get("X-Amz-Security-Token") == (None if token is None else " ".join(token.split()))


def test_the_key_of_a_day_ends_with_it_and_with_its_secret() -> None:
    signer = targets(None).find("GetRecords", {}).signer
    at = datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC)
    first = signer.sign(AccessKeys("a", "s"), at, b"")
    others = [
        signer.sign(AccessKeys("a", "s"), at + timedelta(seconds=1), b""),
        signer.sign(AccessKeys("a", "t"), at, b""),
        signer.sign(AccessKeys("a", "s", "token"), at, b""),
        signer.sign(AccessKeys("a", "s"), at, b"x"),
    ]
    assert len({first, *others}) == 5
    assert signer.sign(AccessKeys("a", "s"), at, b"") == first


def would_send(url: str | None, call: str, arguments: dict[str, Any], **more: Any) -> Any:
    """What botocore would send, and its headers in lower case."""
    session = botocore.session.Session()
    session.set_credentials("AKID", "secret")
    client = session.create_client(
        "kinesis", region_name="eu-west-1", endpoint_url=url, config=Config(**more)
    )
    sent: list[Any] = []

    def keep(request: Any, **_: object) -> None:
        sent.append(request)
        raise KeyboardInterrupt

    client.meta.events.register("before-send.kinesis", keep)
    with pytest.raises(KeyboardInterrupt):
        getattr(client, call)(**arguments)
    return sent[0]


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:4567", "http://[::1]:1/a/b?z=1"])
@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ("get_records", "GetRecords", {"ShardIterator": "i", "Limit": 5}),
        ("get_records", "GetRecords", {"ShardIterator": "i", "Limit": 5, "StreamARN": ARN}),
        ("list_shards", "ListShards", {"StreamName": "orders"}),
        ("list_shards", "ListShards", {"StreamARN": ARN}),
        (
            "subscribe_to_shard",
            "SubscribeToShard",
            {"ConsumerARN": CONSUMER, "ShardId": "s", "StartingPosition": {"Type": "LATEST"}},
        ),
    ],
)
def test_a_call_goes_where_botocore_would_send_it(
    url: str | None, call: str, name: str, arguments: dict[str, Any]
) -> None:
    theirs = would_send(url, call, arguments)
    ours = targets(url).find(name, arguments)
    assert theirs.url == ours.origin + ours.path
    headers = {key.lower(): value for key, value in sent_with(ours.headers).items()}
    for header in ("x-amz-target", "content-type"):
        value = theirs.headers[header]
        assert headers[header] == (value.decode() if isinstance(value, bytes) else value)
    assert json.loads(theirs.body) == arguments


def test_the_environment_chooses_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, url in [
        ("AWS_USE_FIPS_ENDPOINT", "https://kinesis-fips.eu-west-1.amazonaws.com/"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "https://kinesis.eu-west-1.api.aws/"),
    ]:
        with monkeypatch.context() as patch:
            patch.setenv(name, "true")
            assert targets(None).find("GetRecords", {}).url == url
            of_account = url.replace("//kinesis", "//123456789012.data-kinesis")
            assert targets(None).find("GetRecords", {"StreamARN": ARN}).url == of_account
            of_account = url.replace("//kinesis", "//123456789012.control-kinesis")
            assert targets(None).find("DescribeStreamConsumer", {"ConsumerARN": CONSUMER}).url == of_account
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:9/x")
    found = targets(None).find("GetRecords", {"StreamARN": ARN})
    assert (found.origin, found.path) == ("http://127.0.0.1:9", "/x")
