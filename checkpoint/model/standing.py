"""The standing of a shard: why it is not read, and what follows from that for whoever asks. Pure.

Each cause is a row of one table, whose columns are the questions that are asked of a shard. Who asks asks a column, so
a new cause is a new row and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache, partial

from kinesis_trident.checkpoint.model.nodes import InflightNode, ShardLineage
from kinesis_trident.common.visible_text import count_noun

MANY_GROUPS = 200_000
"""Groups of failed neighbours, of all shards together, from which on they are worth a warning."""


class Looks(IntEnum):
    """How often a run looks at what is unread of a shard; of several causes the rarest counts."""

    NEVER = 0
    SELDOM = 1
    UNTIL_KNOWN = 2
    PACE = 3


class InStep(IntEnum):
    """Whether others wait for a shard that is behind, with `maxShardSkew`; of several causes the least counts.

    `AT_TIP`: it is not behind the time at which it was seen to have nothing.
    """

    NO = 0
    AT_TIP = 1
    A_WHILE = 2
    YES = 3


class Share(IntEnum):
    """What the lag of a shard is in the sum of all; of several causes the first one counts.

    `APART`: it is told by itself.
    """

    ZERO = 0
    LEFT_OUT = 1
    APART = 2
    COUNTED = 3


@dataclass(frozen=True, eq=False, slots=True)
class StandingCause:
    """One reason for how a shard stands.

    Attributes:
        word: its name, for people and programs.
        sentence: what it is.
        reads: a batch may read new records.
        looks: how often a run looks at what is unread.
        step: whether others wait for the shard.
        drain: a drain waits until the shard is read as far as it asks.
        share: of its lag in the sum.
    """

    word: str
    sentence: str
    reads: bool = True
    looks: Looks = Looks.PACE
    step: InStep = InStep.YES
    drain: bool = True
    share: Share = Share.COUNTED

    @property
    def expiry(self) -> bool:
        """Return whether unread records that expire are a loss: where nobody looks, nobody knows that it was empty."""
        return self.looks is not Looks.NEVER


_UNREAD = partial(StandingCause, reads=False, step=InStep.NO, drain=False)

NOT_READ = _UNREAD("not-read", "its stream is not read now", looks=Looks.NEVER, share=Share.LEFT_OUT)
ENDED = _UNREAD("ended", "read to its end, or removed by retention", looks=Looks.NEVER, share=Share.ZERO)
CHILDLESS = replace(
    ENDED,
    word="childless",
    sentence="read to its end, and its children are not listed yet",
    step=InStep.A_WHILE,
)
# A drain waits for the parents: of those that it reads no further the child has only what came later.
WAITS_FOR_PARENTS = _UNREAD("waits-for-parents", "its parents are read first", looks=Looks.SELDOM)
PAUSED = _UNREAD("paused", "people have paused it, or its parents", looks=Looks.SELDOM, share=Share.APART)
BLOCKED = StandingCause(
    "blocked", "too much of it has failed, or is not acked", False, Looks.UNTIL_KNOWN, InStep.A_WHILE
)
RETRIES_FIRST = StandingCause(
    "retries-first",
    "what of it, or of what it comes of, has failed is retried first",
    False,
    Looks.UNTIL_KNOWN,
    InStep.A_WHILE,
)
REFUSED = StandingCause("refused", "the service refuses its reads", step=InStep.A_WHILE)
AHEAD = StandingCause("ahead", "others are behind it by more than maxShardSkew", reads=False)
DRAINED = _UNREAD("drain", "a drain has read it as far as it asks", looks=Looks.SELDOM)
UNKNOWN = StandingCause("unknown", "nobody knows whether it has more", step=InStep.A_WHILE)
IDLE = StandingCause("idle", "it was seen at its tip", step=InStep.AT_TIP)
READING = StandingCause("reading", "it has more")

TABLE = (
    NOT_READ,
    ENDED,
    CHILDLESS,
    PAUSED,
    WAITS_FOR_PARENTS,
    BLOCKED,
    RETRIES_FIRST,
    REFUSED,
    AHEAD,
    DRAINED,
    UNKNOWN,
    IDLE,
    READING,
)
"""The causes; of several the first one names the standing."""

_RANKS = {cause: rank for rank, cause in enumerate(TABLE)}
_BY_WORD = {cause.word: cause for cause in TABLE}


@dataclass(frozen=True, eq=False, slots=True)
class Standing:
    """The causes that hold for a shard, and their columns together. There is one object for each set of causes.

    `held_by`: the word of the first cause, for a shard that is not read though it has not ended; empty for the others.
    """

    causes: tuple[StandingCause, ...]
    held_by: str = field(init=False)
    reads: bool = field(init=False)
    looks: Looks = field(init=False)
    step: InStep = field(init=False)
    drain: bool = field(init=False)
    share: Share = field(init=False)
    expiry: bool = field(init=False)

    def __post_init__(self) -> None:
        # Asked of each shard several times a plan, so nothing of it is computed there.
        rows = self.causes or (READING,)
        shares = [one.share for one in rows]
        for name, value in (
            ("held_by", "" if rows[0].reads or Share.ZERO in shares else rows[0].word),
            ("reads", all(one.reads for one in rows)),
            ("looks", min(one.looks for one in rows)),
            ("step", min(one.step for one in rows)),
            ("drain", all(one.drain for one in rows)),
            ("share", min(shares)),
            ("expiry", all(one.expiry for one in rows)),
        ):
            object.__setattr__(self, name, value)

    def also(self, *causes: StandingCause) -> Standing:
        """Return the standing for which these causes hold too."""
        return _join(self, causes) if causes else self


@cache
def _join(standing: Standing, causes: tuple[StandingCause, ...]) -> Standing:
    return standing_of(frozenset((*standing.causes, *causes)))


@cache
def standing_of(causes: frozenset[StandingCause]) -> Standing:
    """Return the standing of a shard for which these causes hold."""
    return Standing(tuple(sorted(causes, key=_RANKS.__getitem__)))


PLAIN = standing_of(frozenset())
"""The standing of a shard that is read."""


def cause_of(word: str) -> StandingCause | None:
    """Return the cause of a name; None for one of another release."""
    return _BY_WORD.get(word)


def find_standing(
    listed: ShardLineage | None,
    inflight: InflightNode | None,
    *,
    is_read: bool,
    waits: bool,
    is_paused: bool = False,
    is_childless: bool = False,
) -> Standing:
    """Return how a shard stands by its nodes, without what a run sees of it.

    Args:
        listed: its lineage; None if it is not listed any more.
        inflight: its records in flight.
        is_read: its stream is read now.
        waits: its parents are read first.
        is_paused: people have paused it, or its parents.
        is_childless: no shard is listed that comes after it.
    """
    ended = listed is None or listed.state == "drained"
    causes = (
        (NOT_READ, not is_read),
        (ENDED, ended and not is_childless),
        (CHILDLESS, ended and is_childless),
        (PAUSED, is_paused and not ended),
        (WAITS_FOR_PARENTS, waits and not ended),
        (BLOCKED, inflight is not None and bool(inflight.blocked)),
    )
    return standing_of(frozenset(cause for cause, holds in causes if holds))


MANY_BOUNDED = "maxFetchRecordsPerShard bounds those of a batch, and maxRetryingRecords those that wait"
"""The options against what `explain_many` says."""


def explain_many(inflight: Iterable[InflightNode]) -> str:
    """Return that ZooKeeper holds nearly as many failed records as it is known to bear; empty if it does not."""
    groups = sum(len(node.waiting) + len(node.dead) for node in inflight)
    if groups < MANY_GROUPS:
        return ""
    known = "a server with 256 MB of heap was seen to bear 300,000"
    wait = count_noun(groups, "group of failed neighbours waits", "groups of failed neighbours wait")
    return f"{wait} in ZooKeeper; {known}"


def explain_blocked(inflight: Mapping[str, InflightNode]) -> dict[str, str]:
    """Return why shards read nothing new, by shard; and that all shards together have many failed records."""
    # What a node says was written for its shard alone.
    many = explain_many(inflight.values())
    more = f". {many}. {MANY_BOUNDED}" if many else ""
    return {shard: f"{node.blocked}{more}" for shard, node in inflight.items() if node.blocked}
