"""Where calls go: botocore's own settings choose dual-stack, FIPS and interface endpoints, as docs/security.md says."""

from __future__ import annotations

import pytest

from kinesis_trident.spout.kinesis.aws_session import create_calls, open_session
from kinesis_trident.spout.kinesis.remedies import RequestClock
from kinesis_trident.spout.options.connection import ConnectionOptions

INTERFACE = "https://vpce-0a1b-2c3d.kinesis.us-east-1.vpce.amazonaws.com"


@pytest.mark.parametrize(
    ("settings", "options", "endpoint"),
    [
        ({}, {}, "https://kinesis.us-east-1.amazonaws.com"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, {}, "https://kinesis.us-east-1.api.aws"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, {}, "https://kinesis-fips.us-east-1.amazonaws.com"),
        (
            {"AWS_USE_DUALSTACK_ENDPOINT": "true", "AWS_USE_FIPS_ENDPOINT": "true"},
            {},
            "https://kinesis-fips.us-east-1.api.aws",
        ),
        ({"AWS_ENDPOINT_URL_KINESIS": INTERFACE}, {}, INTERFACE),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, {"endpoint_url": INTERFACE}, INTERFACE),
    ],
)
def test_calls_go_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], options: dict[str, str], endpoint: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    given = ConnectionOptions(region="us-east-1", **options)
    _, where = create_calls(open_session(given), given, RequestClock())
    assert where == f"us-east-1 ({endpoint})"
