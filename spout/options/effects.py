"""The effect of each option, by how a stream is read: documentation, warnings, refusals come from one table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Condition:
    """The value of another option on which an effect depends: it needs this one, or any other with `is_not`."""

    key: str
    value: object
    is_not: bool = False

    def holds(self, effective: Mapping[str, Any]) -> bool:
        """Return whether the options, by key, are so."""
        return (effective[self.key] == self.value) is not self.is_not

    def __str__(self) -> str:
        if self.value is None:
            return self.key
        return f"{self.key}{' other than ' if self.is_not else '='}{self.value}"


@dataclass(frozen=True, slots=True)
class Effect:
    """Where an option has an effect.

    Attributes:
        stream: in a query (`readStream`).
        batch: in a batch (`spark.read`).
        when: only there, or there.
        refused: why it is refused where it has none, and what to do; None: the log names it.
        page: of the documentation, for the log.
    """

    stream: bool = True
    batch: bool = True
    when: tuple[Condition, ...] = ()
    refused: str | None = None
    page: str = "docs/options.md"

    def is_in(self, *, batch: bool) -> bool:
        """Return whether it has an effect in a batch, or in a query, with some values of the others."""
        return self.batch if batch else self.stream

    def describe_condition(self, mark: str = "") -> str:
        """Return the conditions in words, each between marks."""
        return " or ".join(f"{mark}{one}{mark}" for one in self.when)


_ANYWHERE = Effect()
_QUERY = Effect(batch=False)
_IF_RETRIED = Condition("retryLimit", 0, is_not=True)
_CONSUMER = Effect(batch=False, when=(Condition("consumerMode", "efo"),), refused="", page="docs/fan-out.md")


def _limit(unit: str) -> Effect:
    return Effect(
        batch=False,
        refused=f"a batch reads all {unit} between its positions. Set endingPosition, or use limit() of the DataFrame",
    )


def _rows(effect: Effect, keys: str) -> dict[str, Effect]:
    return dict.fromkeys(keys.split(), effect)


EFFECT: Mapping[str, Effect] = {
    **_rows(
        _ANYWHERE,
        "streamName streamARN region endpointUrl profile roleArn roleSessionName roleExternalId webIdentityTokenFile "
        "stsEndpoint awsAccessKeyId awsSecretAccessKey sessionToken clientNumRetries applicationName startingPosition "
        "onExhausted deadLetter deaggregate maxRecordsPerFetch minFetchPeriod maxFetchRate clientRetryInterval "
        "clientMaxRetryInterval readTimeout shardsPerTask maxPartitions failOnDataLoss",
    ),
    **_rows(
        _QUERY,
        "spout ackMode messageTimeout recordTimeout maxFailedShare noRetryFor maxRecordAge "
        "retryLimit maxRetryingRecords retryRangesPerShard retryBytesPerShard "
        "maxFetchRecordsPerShard maxFetchBytesPerShard maxFetchBytesPerTask maxShardSkew maxFetchTime idlePollInterval "
        "consumerMode describeShardInterval shardOrdering onCheckpointMismatch logFormat",
    ),
    "retryBackoff": Effect(
        batch=False,
        when=(_IF_RETRIED, Condition("maxFailedShare", None, is_not=True)),
        page="docs/retries.md",
    ),
    **_rows(Effect(batch=False, when=(_IF_RETRIED,), page="docs/retries.md"), "retryOrder retrySpool"),
    **_rows(_CONSUMER, "consumerName consumerARN consumerLifecycle"),
    "maxRecordsPerTrigger": _limit("records"),
    "maxBytesPerTrigger": _limit("records"),
    "maxInflightRecords": Effect(batch=False, when=(Condition("ackMode", "explicit"),), page="docs/acks.md"),
    "prefetch": Effect(batch=False, when=(Condition("consumerMode", "polling"),), page="docs/fan-out.md"),
    "endingPosition": Effect(stream=False, refused="a stream has no end. See Trigger.AvailableNow"),
    "filterPushdown": Effect(stream=False, refused="Spark pushes no filters into a stream. Remove it"),
}
"""Of the options of ZooKeeper each has the effect of those of a query; a batch ignores them without a word."""


def effect_of(key: str) -> Effect:
    """Return the effect of an option."""
    return _QUERY if key.startswith("zookeeper.") else EFFECT.get(key, _ANYWHERE)


@dataclass(frozen=True, slots=True)
class Unused:
    """An option without an effect: its key, why, and whether that is refused."""

    key: str
    why: str
    is_refused: bool


def find_unused(
    given: Iterable[str], effective: Mapping[str, Any], defaults: Mapping[str, Any], *, batch: bool
) -> Iterator[Unused]:
    """Yield the given options that have no effect; one with its default value says nothing.

    Args:
        given: the keys that the user has set.
        effective: the values of all options, by key.
        defaults: their defaults.
        batch: they are those of a batch.
    """
    for key in given:
        effect = effect_of(key)
        if effective[key] == defaults[key]:
            continue
        if not effect.is_in(batch=batch):
            if effect.refused:
                only = "stream (readStream)" if batch else "batch (spark.read)"
                yield Unused(key, f"option {key} is for a {only} only: {effect.refused}", is_refused=True)
            elif not key.startswith("zookeeper."):
                yield Unused(key, f"option {key} has no effect in a batch (spark.read)", is_refused=False)
        elif effect.when and not any(one.holds(effective) for one in effect.when):
            now = f"{effect.when[0].key}={effective[effect.when[0].key]}"
            why = (
                f"option {key} has no effect with {now}. Set {effect.describe_condition()}, or remove the option "
                f"({effect.page})"
            )
            yield Unused(key, why, is_refused=effect.refused is not None)
