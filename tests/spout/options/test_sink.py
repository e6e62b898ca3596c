from __future__ import annotations

import pickle
import re

import pytest
from doc_tables import WRITE_OPTIONS_TABLE

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options import source
from kinesis_trident.spout.options.sink import WriteOptions


def test_a_stream_is_all_that_a_write_needs() -> None:
    found = WriteOptions.parse({"streamName": "orders"})
    assert (found.stream_name, found.max_requests_in_flight, found.write_timeout) == ("orders", 4, 120.0)
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders.v2"
    found = WriteOptions.parse({"kinesis.STREAMARN": arn, "writetimeout": "5s"})
    assert (found.stream_arn, found.stream_name, found.region) == (arn, "orders.v2", "eu-west-1")
    assert found.write_timeout == 5.0


def test_what_spark_hands_over_of_its_own_is_no_option() -> None:
    given = {"streamName": "orders", "checkpointLocation": "/c", "queryName": "q"}
    assert WriteOptions.parse(given) == WriteOptions.parse({"streamName": "orders"})


def test_options_of_other_sinks_are_taken_under_their_names() -> None:
    qubole = {
        "kinesis.executor.recordMaxBufferedTime": "1000",
        "kinesis.executor.maxConnections": "8",
        "kinesis.executor.aggregationEnabled": "true",
        "kniesis.executor.flushwaittimemillis": "100",
    }
    awslabs = {
        "kinesis.sink.flushWaitTimeMs": "100",
        "kinesis.sink.recordMaxBufferedTimeMs": "1000",
        "kinesis.sink.maxConnections": "8",
        "kinesis.sink.aggregationEnabled": "True",
    }
    ours = {"maxRequestsInFlight": "8", "aggregate": "true"}
    for given in (qubole, awslabs):
        lowered = {name.lower(): value for name, value in given.items()}
        for options in (given, lowered):
            assert WriteOptions.parse({"streamName": "orders", **options}) == WriteOptions.parse(
                {"streamName": "orders", **ours}
            )
        for name in given:
            with pytest.raises(OptionsError, match="For a write, which accepts it"):
                source.SourceOptions.parse({"streamName": "orders", name: "1"})
    with pytest.raises(OptionsError, match="no record is dropped"):
        WriteOptions.parse({"streamName": "orders", "kinesis.sink.recordTtl": "30000"})


def test_the_stream_may_come_from_the_rows_and_is_in_the_account_of_the_arn() -> None:
    found = WriteOptions.parse({"region": "eu-west-1"}, rows_name_streams=True)
    assert (found.stream_name, found.resolve_name("orders")) == (None, "orders")
    assert found.place == "the streams that the rows name"
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    found = WriteOptions.parse({"streamARN": arn}, rows_name_streams=True)
    assert found.resolve_name("orders") == "orders"
    assert found.resolve_name("others") == "arn:aws:kinesis:eu-west-1:123456789012:stream/others"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option streamName (or streamARN) is required"),
        (
            {"applicationName": "app"},
            "option applicationName is for reading only (a write keeps no state in ZooKeeper)",
        ),
        ({"consumerGroup": "app"}, "for reading only (a write keeps no state in ZooKeeper"),
        ({"kinesis.zookeeper.hosts": "zk:2181"}, "for reading only (a write keeps no state"),
        ({"startingPosition": "LATEST"}, "option startingPosition is for reading only. Remove it"),
        ({"kinesis.executor.maxFetchTimePerShardSec": "1"}, "is for reading only. Remove it"),
        ({"maxRequestInFlight": "2"}, "Did you mean maxRequestsInFlight?"),
        ({"path": "/x"}, "a write takes no path"),
        ({"maxRequestsInFlight": "0"}, "at least 1 and at most 64"),
        ({"writeTimeout": "0s"}, "a positive duration"),
        ({"maxRecordsPerSecond": "0"}, "a positive number, such as 500 or 0.5"),
        ({"maxRecordsPerSecond": "fast"}, "a positive number, such as 500 or 0.5"),
        ({"maxBytesPerSecond": "0"}, "a size of at least one byte"),
        ({"aggregate": "true", "maxAggregateBytes": "2MiB"}, "a size from 64 bytes to 1MiB, such as 50KiB"),
        (
            {"maxAggregateBytes": "10KiB"},
            "no effect without aggregates. Set aggregate=true, or remove the option",
        ),
        ({"kinesis.executor.recordMaxBufferedTime": "soon"}, "a duration with its unit"),
        ({"awsAccessKeyId": "a"}, "awsAccessKeyId requires option awsSecretAccessKey"),
        ({"roleExternalId": "a"}, "roleExternalId requires option roleArn"),
        ({"streamARN": "arn:aws:kinesis:eu-west-1:1:stream/a", "streamName": "b"}, "Give only one of them"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    named = {} if not given or "streamARN" in given else {"streamName": "orders"}
    with pytest.raises(OptionsError, match=re.escape(said)):
        WriteOptions.parse({**named, **given})


def test_every_option_of_the_source_is_taken_or_called_one_for_reading() -> None:
    taken = {
        "streamName",
        "streamARN",
        "region",
        "endpointUrl",
        "profile",
        "roleArn",
        "roleSessionName",
        "roleExternalId",
        "stsEndpoint",
        "webIdentityTokenFile",
        "awsAccessKeyId",
        "awsSecretAccessKey",
        "sessionToken",
        "clientNumRetries",
    }
    for option in source.TABLE:
        for name in (option.key, *option.aliases):
            if option.key in taken:
                assert option_is_taken(name)
            else:
                with pytest.raises(OptionsError, match=f"option {name} is for reading only"):
                    WriteOptions.parse({"streamName": "orders", name: "1"})


def option_is_taken(name: str) -> bool:
    """Tell whether a write knows the option, if not every value of it."""
    try:
        WriteOptions.parse({name: "1"})
    except OptionsError as error:
        return "for reading only" not in str(error) and "unknown" not in str(error)
    return True


def test_secrets_are_shown_nowhere_and_they_travel() -> None:
    given = {"awsAccessKeyId": "AKIDSECRET", "awsSecretAccessKey": "KEYSECRET", "sessionToken": "TOKENSECRET"}
    found = WriteOptions.parse({"streamName": "orders", **given})
    assert "SECRET" not in repr(found)
    assert repr(found).startswith("WriteOptions(stream_name='orders'")
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({found, WriteOptions.parse({"streamName": "orders", **given})}) == 1


def test_an_unknown_option_points_to_the_page_on_writing() -> None:
    with pytest.raises(OptionsError, match=r"unknown option qwertz.*See docs/writing\.md"):
        WriteOptions.parse({"streamName": "orders", "qwertz": "1"})


def test_the_documentation_is_the_table() -> None:
    assert WRITE_OPTIONS_TABLE.read() == WRITE_OPTIONS_TABLE.render()
