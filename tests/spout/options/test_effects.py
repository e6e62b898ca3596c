"""An option has its effect, or it is refused, or the log names it: as one table says, and the documentation with it."""

from __future__ import annotations

import pytest
from doc_tables import describe_effect

from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.options.effects import EFFECT, Condition, effect_of
from kinesis_trident.spout.options.rules import _warn_once
from kinesis_trident.spout.options.source import TABLE, SourceOptions

QUERY = {"streamName": "orders", "applicationName": "app", "zookeeper.hosts": "zk:2181"}
BATCH = {"streamName": "orders"}
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
VALUES = {
    "spout": "nontransactional",
    "ackMode": "explicit",
    "messageTimeout": "31s",
    "recordTimeout": "31s",
    "noRetryFor": "KeyError",
    "maxRecordAge": "9h",
    "maxFailedShare": "0.5",
    "maxInflightRecords": "9",
    "retryLimit": "4",
    "retryBackoff": "1s..2s x2",
    "retryOrder": "shard",
    "retrySpool": "/spool",
    "maxRetryingRecords": "9",
    "retryRangesPerShard": "9",
    "retryBytesPerShard": "9",
    "maxRecordsPerTrigger": "9",
    "maxBytesPerTrigger": "9",
    "maxFetchRecordsPerShard": "9",
    "maxFetchBytesPerShard": "9",
    "maxFetchBytesPerTask": "9MiB",
    "maxShardSkew": "off",
    "maxFetchTime": "9s",
    "idlePollInterval": "9s",
    "prefetch": "true",
    "consumerMode": "efo",
    "consumerName": "reader",
    "consumerARN": f"{ARN}/consumer/reader:1",
    "consumerLifecycle": "external",
    "describeShardInterval": "9s",
    "shardOrdering": "none",
    "onCheckpointMismatch": "continue",
    "logFormat": "json",
    "endingPosition": "LATEST",
    "filterPushdown": "true",
}
"""Another value than the default of each option that does not have an effect everywhere."""


def said_of(given: dict[str, str], *, batch: bool, caplog: pytest.LogCaptureFixture) -> str:
    """Return what an option without an effect is answered with."""
    _warn_once.cache_clear()
    caplog.clear()
    try:
        SourceOptions.parse_batch(given) if batch else SourceOptions.parse(given)
    except OptionsError as error:
        return f"refused: {error}"
    return "".join(f"named: {line}" for line in caplog.messages)


def test_each_option_has_a_row_and_each_row_is_of_an_option() -> None:
    keys = {line.key for line in TABLE if line.part_of is None and not line.key.startswith("zookeeper.")}
    assert keys == set(EFFECT)
    restricted = {key for key, effect in EFFECT.items() if effect != EFFECT["streamName"]}
    assert restricted == set(VALUES)


@pytest.mark.parametrize("batch", [False, True], ids=["query", "batch"])
@pytest.mark.parametrize("key", sorted(VALUES))
def test_an_option_without_an_effect_is_refused_or_named(
    key: str, batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    effect, least = effect_of(key), BATCH if batch else QUERY
    if key == "consumerARN":
        least = {name: value for name, value in least.items() if name != "streamName"}
    said = said_of(least | {key: VALUES[key]}, batch=batch, caplog=caplog)
    if not effect.is_in(batch=batch):
        assert said.startswith(
            f"refused: option {key} is for a" if effect.refused else f"named: option {key} has no"
        )
        return
    if not effect.when:
        assert said == ""
        return
    condition = effect.when[0]
    for holds in (True, False):
        given = least | {key: VALUES[key], condition.key: value_of(condition, holds)}
        said = said_of(given, batch=batch, caplog=caplog)
        wanted = (
            ""
            if holds
            else f"{'named' if effect.refused is None else 'refused'}: option {key} has no effect with"
        )
        assert said.startswith(wanted)
        assert bool(said) is not holds


def value_of(condition: Condition, holds: bool) -> str:
    """Return a value with which a condition holds, or does not."""
    others = {"retryLimit": "3", "consumerMode": "efo", "ackMode": "batch"}
    if condition.value == "efo":
        others["consumerMode"] = "polling"
    return str(condition.value) if holds is not condition.is_not else others[condition.key]


def test_an_option_at_its_default_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for line in TABLE:
        if line.default is not None and line.part_of is None:
            assert said_of(BATCH | {line.key: line.default}, batch=True, caplog=caplog) == ""
            assert said_of(QUERY | {line.key: line.default}, batch=False, caplog=caplog) == ""


def test_the_documentation_says_it() -> None:
    assert describe_effect("maxFetchRate") == ""
    assert (
        describe_effect("prefetch")
        == "It has an effect with `consumerMode=polling` only. It is for a query only."
    )
    assert describe_effect("maxRecordsPerTrigger") == "It is for a query only; a batch refuses it."
    assert describe_effect("filterPushdown") == "It is for a batch only; a query refuses it."
    said = "It has an effect with `retryLimit other than 0` or `maxFailedShare` only."
    assert describe_effect("retryBackoff").startswith(said)
