from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest
from doc_tables import OPTIONS_TABLE, OTHER_OPTIONS_TABLE
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.zookeeper.client import Sasl, ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.tls import Tls
from kinesis_trident.spout.errors import OptionsError, SpoutError
from kinesis_trident.spout.options.rules import _warn_once
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.options.source import TABLE, SourceOptions
from kinesis_trident.spout.options.table import by_name, options_of, other_options
from kinesis_trident.spout.planner.state import make_rules

LEAST = {"streamName": "orders", "applicationName": "app", "zookeeper.hosts": "zk:2181"}
SECRETS = {
    "awsAccessKeyId": "AKIDSECRET",
    "awsSecretAccessKey": "KEYSECRET",
    "sessionToken": "TOKENSECRET",
    "zookeeper.digest.password": "user:DIGESTSECRET",
    "zookeeper.sasl.username": "me",
    "zookeeper.sasl.password": "SASLSECRET",
}


def parse(given: Mapping[str, str] | None = None, /, **more: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **(given or {}), **more})


def test_the_least_gives_the_documented_defaults() -> None:
    options = parse()
    assert options.stream_name == "orders"
    assert options.starting_position == "LATEST"
    assert options.spout == "opaque"
    assert (options.retry_limit, options.retry_backoff, options.on_exhausted) == (3, "1s..60s x2", "fail")
    assert options.max_fetch_records_per_shard == 100_000
    assert options.max_fetch_bytes_per_shard == 16 * 2**20
    assert options.max_fetch_bytes_per_task == 128 * 2**20
    assert (options.max_fetch_time, options.min_fetch_period) == (1.0, 0.2)
    assert options.max_fetch_rate == 2 * 2**20
    assert options.max_records_per_fetch == 10_000
    assert (options.shards_per_task, options.max_partitions, options.max_records_per_trigger) == (
        None,
        None,
        None,
    )
    assert (options.describe_shard_interval, options.shard_ordering) == (10.0, "parentFirst")
    assert (options.fail_on_data_loss, options.on_checkpoint_mismatch) == (True, "stop")
    assert (options.max_retrying_records, options.retry_ranges_per_shard) == (1000, 2)
    assert options.retry_bytes_per_shard == 4 * 2**20
    assert options.client_num_retries == 5
    assert options.zookeeper == ZooKeeperConfig("zk:2181", 20.0)
    assert options.zookeeper_root == "/kinesis-trident"


@pytest.mark.parametrize(
    ("key", "value", "mode", "lifecycle"),
    [
        ("consumerMode", "EFO", "efo", "managed"),
        ("consumerType", "SubscribeToShard", "efo", "managed"),
        ("kinesis.consumerType", "GetRecords", "polling", "managed"),
        ("source.reader.type", "POLLING", "polling", "managed"),
    ],
)
def test_the_consumer_s_mode_under_its_names(key: str, value: str, mode: str, lifecycle: str) -> None:
    options = parse({key: value})
    assert (options.consumer_mode, options.consumer_lifecycle) == (mode, lifecycle)
    assert options.consumer_name == ("app" if mode == "efo" else None)


def test_the_consumer_is_named_and_managed_as_asked() -> None:
    options = parse({"consumerMode": "efo", "consumerName": "other", "source.efo.lifecycle": "SELF_MANAGED"})
    assert (options.consumer_name, options.consumer_lifecycle) == ("other", "external")


STREAM = "arn:aws:kinesis:eu-west-1:999988887777:stream/orders"
CONSUMER = f"{STREAM}/consumer/theirs:1700000000"


@pytest.mark.parametrize(
    "given", [{}, {"streamName": "orders"}, {"streamARN": STREAM, "region": "eu-west-1"}]
)
def test_a_consumer_s_arn_says_which_stream_and_that_nobody_registers_it(given: dict[str, str]) -> None:
    least = {key: value for key, value in LEAST.items() if key != "streamName"}
    options = SourceOptions.parse({**least, "consumerMode": "efo", "consumerARN": CONSUMER, **given})
    assert (options.consumer_arn, options.stream_arn, options.region) == (CONSUMER, STREAM, "eu-west-1")
    assert (options.streams, options.consumer_name) == (("orders",), None)
    assert options.consumer_lifecycle == "external"


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"consumerName": "x"}, "option consumerName has no effect with consumerMode=polling"),
        (
            {"consumerLifecycle": "external"},
            "option consumerLifecycle has no effect with consumerMode=polling",
        ),
        ({"consumerMode": "push"}, "consumerMode is 'push'. Expected: polling or efo"),
        ({"consumerMode": "efo", "consumerName": "a b"}, "consumerName is 'a b'. Expected: 1 to 128"),
        (
            {"consumerMode": "efo", "applicationName": "a b"},
            "'a b' is no valid consumer name .*Set consumerName",
        ),
        ({"consumerARN": CONSUMER}, "option consumerARN has no effect with consumerMode=polling"),
        ({"consumerMode": "efo", "consumerARN": STREAM}, "Expected: the ARN of a consumer, such as arn:aws"),
        (
            {"consumerMode": "efo", "consumerARN": CONSUMER, "consumerName": "x"},
            "consumerName cannot be combined with consumerARN",
        ),
        (
            {"consumerMode": "efo", "consumerARN": CONSUMER, "consumerLifecycle": "managed"},
            "consumerLifecycle=managed cannot be combined with consumerARN",
        ),
        (
            {"consumerMode": "efo", "consumerARN": CONSUMER, "region": "us-east-1"},
            "option region is 'us-east-1', but arn:.* says 'eu-west-1'",
        ),
        (
            {"consumerMode": "efo", "consumerARN": CONSUMER, "streamName": "returns"},
            "option streamName is 'returns', but arn:.* says 'orders'",
        ),
        (
            {"consumerMode": "efo", "consumerARN": CONSUMER, "streamARN": STREAM.replace("9999", "1111")},
            "consumerARN names consumers of arn:.*:999988887777:.*, but streamARN is arn:.*:111188887777:",
        ),
    ],
)
def test_what_is_wrong_about_a_consumer_is_said(given_: dict[str, str], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        parse(given_)


@pytest.mark.parametrize(
    "option", [option for option in TABLE if option.default is not None], ids=lambda o: o.key
)
def test_each_default_is_what_a_user_would_write(option: object) -> None:
    assert parse({option.key: option.default}) == parse()  # type: ignore[attr-defined]


@given(st.randoms(use_true_random=False))
def test_keys_are_read_in_any_case_and_with_the_prefix(rng: object) -> None:
    def disguised(key: str) -> str:
        cased = "".join(c.upper() if rng.random() < 0.5 else c.lower() for c in key)  # type: ignore[attr-defined]
        return f"Kinesis.{cased}" if rng.random() < 0.5 else cased  # type: ignore[attr-defined]

    given = {**LEAST, "region": "eu-west-1", "maxRecordsPerTrigger": "7", "shardOrdering": "NONE"}
    assert SourceOptions.parse(
        {disguised(key): value for key, value in given.items()}
    ) == SourceOptions.parse(given)


def test_no_two_options_share_a_name() -> None:
    names = [name.lower() for option in TABLE for name in (option.key, *option.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("alias", "given", "attribute", "value"),
    [
        ("kinesis.executor.maxFetchTimePerShardSec", "10", "max_fetch_time", 10.0),
        ("maxFetchTimeInMs", "1500", "max_fetch_time", 1.5),
        ("maxFetchDuration", "10s", "max_fetch_time", 10.0),
        ("kinesis.getRecords.fetchIntervalMs", "250", "min_fetch_period", 0.25),
        ("idleTimeBetweenReadsInMs", "1000ms", "min_fetch_period", 1.0),
        ("kinesis.client.numRetries", "7", "client_num_retries", 7),
        ("numRetries", "7", "client_num_retries", 7),
        ("kinesis.client.describeShardInterval", "1s", "describe_shard_interval", 1.0),
        ("kinesis.stsRoleArn", "arn:aws:iam::1:role/r", "role_arn", "arn:aws:iam::1:role/r"),
        ("initialPosition", "earliest", "starting_position", "TRIM_HORIZON"),
        ("maxOffsetsPerTrigger", "5", "max_records_per_trigger", 5),
        ("consumerGroup", "app", "application_name", "app"),
        ("recordRetryLimit", "0", "retry_limit", 0),
        ("maxRetries", "9", "retry_limit", 9),
        ("maxDeliveries", "1", "retry_limit", 0),
        ("endpoint", "http://localhost:4566", "endpoint_url", "http://localhost:4566"),
        ("endpoint", "http://[::1]:4566", "endpoint_url", "http://[::1]:4566"),
        ("clientRetryIntervalMs", "500", "client_retry_interval", 0.5),
        ("kinesis.client.retryIntervalMs", "500", "client_retry_interval", 0.5),
        ("retryIntervalMs", "500", "client_retry_interval", 0.5),
        ("clientMaxRetryIntervalMs", "30000", "client_max_retry_interval", 30.0),
        ("maxRetryIntervalMs", "30000", "client_max_retry_interval", 30.0),
        ("avoidEmptyBatches", "true", "max_bytes_per_trigger", None),
        ("client.avoidEmptyBatches", "TRUE", "max_bytes_per_trigger", None),
    ],
)
def test_names_of_other_connectors(alias: str, given: str, attribute: str, value: object) -> None:
    assert getattr(parse({alias: given}), attribute) == value


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ({"startingPosition": "trim_horizon"}, "TRIM_HORIZON"),
        ({"startingPosition": "AT_TIMESTAMP 2026-01-31T12:00:00Z"}, "AT_TIMESTAMP 1769860800000"),
        ({"startingPosition": "at_timestamp 2026-01-31T13:00:00.250+01:00"}, "AT_TIMESTAMP 1769860800250"),
        ({"startingPosition": "AT_TIMESTAMP 2026-01-31 12:00"}, "AT_TIMESTAMP 1769860800000"),
        ({"startingPosition": "AT_TIMESTAMP 1769860800"}, "AT_TIMESTAMP 1769860800000"),
        ({"startingPosition": "AT_TIMESTAMP 1769860800.5"}, "AT_TIMESTAMP 1769860800500"),
        ({"startingTimestamp": "1769860800000"}, "AT_TIMESTAMP 1769860800000"),
        ({"startingTimestamp": "20260131.0"}, "AT_TIMESTAMP 20260131000"),
        ({"startingTimestamp": "20269931"}, "AT_TIMESTAMP 20269931000"),
        ({"startingTimestamp": "20260131T1200Z"}, "AT_TIMESTAMP 1769860800000"),
        (
            {"startingTimestamp": "1769860800", "startingPosition": "AT_TIMESTAMP"},
            "AT_TIMESTAMP 1769860800000",
        ),
    ],
)
def test_starting_positions(given: dict[str, str], position: str) -> None:
    assert parse(given).starting_position == position


def test_an_arn_gives_name_and_region() -> None:
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders.v2"
    options = SourceOptions.parse({"streamARN": arn, "applicationName": "app", "zookeeper.hosts": "zk:2181"})
    assert (options.stream_arn, options.stream_name, options.region) == (arn, "orders.v2", "eu-west-1")


def test_streams_of_two_accounts_are_read_together_by_their_arns() -> None:
    arns = [
        f"arn:aws:kinesis:eu-west-1:{account}:stream/{name}"
        for account, name in ((111111111111, "a"), (222222222222, "b"))
    ]
    options = SourceOptions.parse(
        {"streamARN": ",".join(arns), "applicationName": "app", "zookeeper.hosts": "zk:2181"}
    )
    assert options.arns == dict(zip("ab", arns, strict=True))


def test_a_dead_letter_is_used_where_one_is_set() -> None:
    assert parse(deadLetter="s3://bucket/dead").on_exhausted == "deadLetter"
    assert parse(onExhausted="SKIP").on_exhausted == "skip"


def test_zookeeper_security() -> None:
    options = parse(
        {"zookeeper.tls.ca": "ca.pem", "zookeeper.tls.cert": "c.pem", "zookeeper.tls.key": "k.pem"}
    )
    assert options.zookeeper.tls == Tls("ca.pem", "c.pem", "k.pem")
    assert parse({"zookeeper.tls.verify": "false"}).zookeeper.tls == Tls(verify=False)
    unnamed = parse({"zookeeper.tls.ca": "ca.pem", "zookeeper.tls.checkHostname": "false"})
    assert unnamed.zookeeper.tls == Tls("ca.pem", check_hostname=False)
    secret = parse(SECRETS).zookeeper
    assert secret.sasl == Sasl("me", "SASLSECRET")
    assert secret.digest == "user:DIGESTSECRET"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxFetchTme": "1s"}, "unknown option maxFetchTme. Did you mean maxFetchTime?"),
        ({"kinesis.streamNam": "x"}, "unknown option kinesis.streamNam. Did you mean streamName?"),
        ({"retrylimits": "1"}, "Did you mean retryLimit?"),
        ({"retryInterval": "1s"}, "unknown option retryInterval. Did you mean clientRetryInterval?"),
        ({"retryDelayMs": "1"}, "Did you mean retryLimit?"),
        ({"maxRetrys": "1"}, "Did you mean retryLimit?"),
        ({"qwertz": "1"}, "unknown option qwertz (Spark passes names in lower case). See docs/options.md"),
        ({"maxfetchtimeinm": "1"}, "(Spark passes names in lower case). Did you mean maxFetchTimeInMs?"),
        ({"path": "/x"}, "load() takes no path"),
        (
            {"streamName": "a,a"},
            "'a,a'. Expected: the name of a stream (1 to 128 letters, digits, `_`, `.` or `-`), or several "
            "different names",
        ),
        ({"streamName": "a b"}, "letters, digits"),
        ({"streamARN": "arn:aws:sqs:eu-west-1:1:q"}, "the ARN of a stream"),
        ({"streamARN": "arn:aws:kinesis:eu-west-1:1:stream/other"}, "'orders', but arn:aws:kinesis"),
        ({"streamARN": "arn:aws:kinesis:eu-west-1:1:stream/orders", "region": "us-east-1"}, "option region"),
        ({"maxFetchTime": "10"}, "option maxFetchTime is '10'. Expected: a duration with its unit"),
        ({"maxFetchTime": "-1s"}, "a duration"),
        ({"maxFetchTimeInMs": "ten"}, "option maxFetchTimeInMs is 'ten'"),
        ({"zookeeper.sessionTimeout": "0s"}, "a positive duration"),
        ({"maxFetchBytesPerShard": "16 XB"}, "a size of at least one byte"),
        ({"maxFetchBytesPerShard": "0"}, "a size of at least one byte"),
        ({"maxRecordsPerFetch": "10001"}, "at least 1 and at most 10000"),
        ({"maxRecordsPerFetch": "0"}, "at least 1 and at most 10000"),
        ({"retryLimit": "-1"}, "a whole number of at least 0"),
        ({"maxDeliveries": "0"}, "a whole number of at least 1"),
        (
            {"maxDeliveries": "5", "retryLimit": "3"},
            "maxDeliveries 5 means retryLimit 4, but retryLimit is 3",
        ),
        (
            {"retrylimit": "1", "kinesis.maxretries": "2"},
            "retryLimit and maxRetries are the same option, set to two values",
        ),
        ({"retryBackoff": "10s..1s x2"}, "<first delay>..<longest delay> x<factor>"),
        ({"spout": "storm"}, "opaque or transactional or nontransactional"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"shardsPerTask": "0"}, "auto, or a whole number of at least 1"),
        ({"maxFetchRate": "0"}, "a positive number"),
        ({"maxFetchRate": "inf"}, "a positive number"),
        ({"endpointUrl": "localhost:4566"}, "a URL"),
        ({"endpointUrl": "http://::1:4567"}, "an IPv6 address is in brackets"),
        ({"endpointUrl": "http://[::1:4567"}, "an IPv6 address is in brackets"),
        ({"endpointUrl": "http://[zz]:4567"}, "an IPv6 address is in brackets"),
        ({"endpointUrl": "http://localhost:456600"}, "a URL with a host, and a port"),
        ({"endpointUrl": "http://:4566"}, "a URL with a host"),
        ({"startingPosition": "SOMETIME"}, "LATEST, TRIM_HORIZON"),
        ({"startingPosition": '{"shardId-0": 7}'}, "the entry of shardId-0 is 7"),
        ({"startingPosition": "AT_TIMESTAMP"}, "without a time"),
        ({"startingPosition": "AT_TIMESTAMP tomorrow"}, "ISO 8601"),
        (
            {"startingPosition": "LATEST", "startingTimestamp": "0"},
            "conflicts with startingPosition LATEST",
        ),
        ({"onExhausted": "deadLetter"}, "deadLetter is not set"),
        (
            {"deadLetter": "orders-dead"},
            "'orders-dead'. Expected: kinesis://name for a stream; for a folder an abs",
        ),
        ({"deadLetter": "~/dead"}, "for a folder an absolute path"),
        ({"retrySpool": "./spool"}, "Expected: an absolute path, because executors run elsewhere, or a URI"),
        ({"onExhausted": "skip", "deadLetter": "/x"}, "deadLetter has no effect with onExhausted=skip"),
        ({"awsAccessKeyId": "a"}, "awsAccessKeyId requires option awsSecretAccessKey"),
        ({"sessionToken": "a"}, "sessionToken requires option awsAccessKeyId"),
        ({"roleExternalId": "a"}, "roleExternalId requires option roleArn"),
        ({"zookeeper.sasl.username": "a"}, "zookeeper.sasl.username requires option zookeeper.sasl.password"),
        ({"region": " "}, "a text that is not empty"),
        (
            {"noRetryFor": "KeyError,"},
            "names of classes of errors without their modules, and words of reasons, ",
        ),
        (
            {"noRetryFor": "json.JSONDecodeError"},
            "names of classes of errors without their modules, and words",
        ),
        ({"maxRecordAge": "0s"}, "a positive duration, such as 20s"),
        ({"maxRetryingRecords": "65537"}, "a whole number of at least 1 and at most 65536"),
        ({"maxFetchRate": "1e400"}, "a positive number"),
        ({"maxFetchRate": "1e-400"}, "a positive number"),
        ({"maxFetchTime": f"{'9' * 400}s"}, "at most 100 years"),
        ({"avoidEmptyBatches": "false"}, "true (no micro-batch is created without records)"),
        ({"clientRetryIntervalMs": "20000"}, "exceeds its upper bound, clientMaxRetryInterval"),
        (
            {"startingPosition": "AT_TIMESTAMP 20260131"},
            "write 2026-01-31 for the date, 20260131.0 for the number",
        ),
        ({"startingTimestamp": "202601311259"}, "write 2026-01-31T12:59:00Z for the date"),
        ({"startingTimestamp": "20260131125900"}, "write 2026-01-31T12:59:00Z for the date"),
        ({"startingTimestamp": "1e30"}, "from 1970 to 9999"),
        ({"startingTimestamp": "1e999999"}, "from 1970 to 9999"),
        ({"startingTimestamp": "-5"}, "from 1970 to 9999"),
        ({"startingTimestamp": "1969-12-31"}, "from 1970 to 9999"),
        ({"startingTimestamp": "nan"}, "ISO 8601"),
        ({"startingPosition": '{"shardId-0": "AFTER_SEQUENCE_NUMBER -5"}'}, "up to 129 digits"),
        ({"startingPosition": '{"shardId-0": "AT_SEQUENCE_NUMBER 1_0"}'}, "up to 129 digits"),
        ({"startingPosition": '{"shardId-0": "AT_SEQUENCE_NUMBER 7:-1"}'}, "up to 129 digits"),
        ({"startingPosition": f'{{"shardId-0": "AT_SEQUENCE_NUMBER {"9" * 5000}"}}'}, "up to 129 digits"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(said)):
        parse(given)


@pytest.mark.parametrize("missing", list(LEAST))
def test_what_is_required(missing: str) -> None:
    with pytest.raises(SpoutError, match=re.escape(f"option {missing}") + ".* is required"):
        SourceOptions.parse({key: value for key, value in LEAST.items() if key != missing})


def test_secrets_are_shown_nowhere() -> None:
    options = parse(SECRETS)
    shown = repr(options) + str(options) + repr(options.zookeeper) + f"{options}"
    assert "SECRET" not in shown
    assert "'me'" in shown
    with pytest.raises(OptionsError) as error:
        parse(SECRETS | {"awsSecretKey": "OTHERSECRET"})
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("key", ["deadLetter", "retrySpool", "endpointUrl", "stsEndpoint"])
@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIDSECRET:KEYSECRET@bucket/x",
        "s3://AKIDSECRET:KEY/SECRET@bucket/x",
        "s3://AKIDSECRET@bucket/x",
        "https://me:SECRET@host:4566/x",
        "http://SECRET@host",
        "ftp://me:SECRET@host",
        "abfss://box:SECRET@account.dfs.core.windows.net/x",
        "abfss://box@account.dfs.core.windows.net/x?sas_token=SECRET",
        "https://host/x?secret_key=SECRET#SECRET",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_shown(key: str, uri: str) -> None:
    with pytest.raises(OptionsError, match=f"option {key} is .*. Expected: a") as error:
        parse({"roleArn": "r", key: uri})
    assert "SECRET" not in str(error.value)
    assert "SECRET" not in repr(
        SourceOptions(stream_name="s", dead_letter=uri, retry_spool=uri, endpoint_url=uri)
    )
    assert "SECRET" not in make_rules(SourceOptions(dead_letter=uri), Random(0)).target


@pytest.mark.parametrize(
    "uri",
    [
        "/local/folder",
        "kinesis://name",
        "s3://bucket/x?region=eu-west-1&endpoint_override=host:9000",
        "abfss://box@account.dfs.core.windows.net/x",
        "hdfs://me@one:8020,two:8020/x@y",
        "file:///x/y@z:1",
    ],
)
def test_an_address_without_credentials_is_taken_and_shown_as_it_is(uri: str) -> None:
    options = parse(deadLetter=uri, retrySpool=uri)
    assert options.dead_letter == options.retry_spool == uri
    assert make_rules(options, Random(0)).target == uri
    assert repr(options).count(repr(uri)) == 2


def test_an_option_without_use_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    given = {"maxInflightRecords": "9"}
    # Other tests have given them before, in this process.
    _warn_once.cache_clear()
    for _ in range(2):
        parse(given)
        parse({"ackMode": "explicit"}, **given)
    said = caplog.messages
    assert len(said) == 1
    assert "option maxInflightRecords has no effect with ackMode=batch" in said[0]
    assert "Set ackMode=explicit" in said[0]


def test_prefetch_is_off_and_has_no_use_with_fan_out(caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    assert not parse().prefetch
    assert parse(prefetch="true").prefetch
    parse(consumerMode="efo", prefetch="false")
    assert caplog.messages == []
    for _ in range(2):
        parse(consumerMode="efo", prefetch="true")
    assert caplog.messages == [
        "option prefetch has no effect with consumerMode=efo. Set consumerMode=polling, or remove the option "
        "(docs/fan-out.md)"
    ]


@pytest.mark.parametrize(
    ("given", "stream", "batch"),
    [
        ({}, True, True),
        ({"startingPosition": "LATEST"}, True, True),
        ({"maxRecordsPerTrigger": "10"}, True, False),
        ({"endingPosition": "LATEST"}, False, True),
        ({"endingPosition": "LATEST", "zookeeper.hosts": None}, False, True),
        ({"applicationName": None}, False, True),
        ({"zookeeper.hosts": None}, False, True),
    ],
)
def test_options_are_read_before_it_is_known_what_they_are_for(
    given: dict[str, str | None], stream: bool, batch: bool
) -> None:
    kept = {key: value for key, value in {**LEAST, **given}.items() if value is not None}
    found = SourceOptions.parse_either(kept)
    assert found == (
        SourceOptions.parse(kept) if stream else None,
        SourceOptions.parse_batch(kept) if batch else None,
    )


def test_what_neither_a_stream_nor_a_batch_takes_is_said_of_both() -> None:
    with pytest.raises(OptionsError) as error:
        SourceOptions.parse_either({"streamName": "orders", "maxRecordsPerTrigger": "10"})
    assert str(error.value).startswith(
        "as a stream (readStream): option applicationName is required; as a batch (spark.read): option "
        "maxRecordsPerTrigger is for a stream (readStream) only: a batch reads all records between its positions"
    )
    with pytest.raises(OptionsError) as error:
        SourceOptions.parse_either({**LEAST, "retryLimit": "-1"})
    assert str(error.value).startswith("option retryLimit is '-1'")


S = "shardId-000000000000"


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("AT_TIMESTAMP 200", "AT_TIMESTAMP 100", "AT_TIMESTAMP 100000 is before AT_TIMESTAMP 200000"),
        (
            f'{{"{S}": "AFTER_SEQUENCE_NUMBER 9"}}',
            f'{{"{S}": "AFTER_SEQUENCE_NUMBER 8"}}',
            f"{S} AFTER_SEQUENCE_NUMBER 8 is before",
        ),
        (
            f'{{"orders": {{"{S}": "AT_TIMESTAMP 200", "*": "TRIM_HORIZON"}}}}',
            "AT_TIMESTAMP 100",
            f"orders {S} AT_TIMESTAMP 100000 is before",
        ),
        ("TRIM_HORIZON", "TRIM_HORIZON", "nothing is before the oldest record"),
    ],
)
def test_a_batch_that_ends_before_it_starts_is_refused(start: str, end: str, said: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(said)):
        SourceOptions.parse_batch({"streamName": "orders", "startingPosition": start, "endingPosition": end})


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("AT_TIMESTAMP 100", "AT_TIMESTAMP 100"),
        (f'{{"{S}": "AFTER_SEQUENCE_NUMBER 9"}}', "AT_TIMESTAMP 100"),
        (f'{{"{S}": "AT_SEQUENCE_NUMBER 9"}}', f'{{"{S}": "AFTER_SEQUENCE_NUMBER 9"}}'),
        ("AT_TIMESTAMP 100", f'{{"{S}": "TRIM_HORIZON", "*": "LATEST"}}'),
    ],
)
def test_a_batch_that_may_hold_something_is_not(start: str, end: str) -> None:
    SourceOptions.parse_batch({"streamName": "orders", "startingPosition": start, "endingPosition": end})


@pytest.mark.parametrize("written", ["tasksPerShard", "taskspershard", "kinesis.tasksPerShard"])
@pytest.mark.parametrize("value", ["1", "2"])
def test_an_option_that_was_removed_is_named_with_what_to_do(written: str, value: str) -> None:
    """A batch had it, and a query took its default: each starts anew without it, as nothing stored has it."""
    said = (
        "option tasksPerShard is no longer there: one task reads a shard. Remove it; repartition() spreads the rows "
        "over tasks (docs/backfill.md)"
    )
    for read in (SourceOptions.parse_batch, SourceOptions.parse, WriteOptions.parse):
        with pytest.raises(OptionsError, match=f"^{re.escape(said)}$"):
            read({"streamName": "orders", written: value})


def test_spark_knows_every_secret_by_its_name() -> None:
    """Spark shows options in its plans, but those whose names match `spark.redaction.regex`: this is its default."""
    known = re.compile("(?i)secret|password|token|access[.]?key")
    names = [name for option in TABLE if option.secret for name in (option.key, *option.aliases)]
    assert names
    assert [name for name in names if not known.search(name)] == []


def test_they_travel_and_compare() -> None:
    options = parse(SECRETS)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(replace(options)) == hash(options)
    assert replace(options, region="eu-west-1") != options


def test_every_field_is_an_option() -> None:
    documented = {option.key for option in TABLE if option.part_of is None}
    assert {item.metadata["option"].key for item in fields(SourceOptions)} == documented


def test_another_connectors_option_is_explained() -> None:
    known = by_name((*TABLE, *options_of(WriteOptions).values()))
    others = [other for other in other_options() if not other.is_ours_of_writes]
    names = [name for other in others for name in other.names]
    assert len({name.lower() for name in names}) == len(names)
    assert not known.keys() & {name.lower() for name in names}
    for other in others:
        # Each option that is named is there.
        for used in re.findall(r"`([\w.]+)[`=]", other.sentence):
            if used[0].islower() and used not in NOT_OPTIONS:
                assert used.lower() in known, used
        for name in other.names:
            for written in (name, name.lower(), f"kinesis.{name}"):
                with pytest.raises(OptionsError) as error:
                    parse({written: "1"})
                assert f"option {written} belongs to another connector. {other.sentence.rstrip('.')}" in str(
                    error.value
                )


NOT_OPTIONS = {
    "approximateArrivalTimestamp",
    "data",
    "efo",
    "explicitHashKey",
    "from_json",
    "kinesis_trident.stop",
    "partitionKey",
    "polling",
    "readStream.format",
    "spark.sql.streaming.minBatchesToRetain",
}


def test_the_documentation_has_the_names_of_other_connectors() -> None:
    assert OTHER_OPTIONS_TABLE.read() == OTHER_OPTIONS_TABLE.render()


def test_the_documentation_is_the_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
    assert OPTIONS_TABLE.read() == OPTIONS_TABLE.render()
    for option in TABLE:
        assert f"\n### `{option.key}`\n" in text


def test_failures_that_are_not_retried_are_named_in_one_text() -> None:
    assert parse().no_retry_for == parse({"noRetryFor": " "}).no_retry_for == frozenset()
    names = parse({"noRetryFor": "JSONDecodeError, KeyError,TIMEOUT"}).no_retry_for
    assert names == {"JSONDecodeError", "KeyError", "TIMEOUT"}
    assert (parse().max_record_age, parse({"maxRecordAge": "2h"}).max_record_age) == (None, 7_200.0)
