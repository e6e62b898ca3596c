"""The owner of a state's keys: a mark beside the fence, so that no two updates share keys.

Two updates of one batch mistake each other's values for their own, and two applications number their batches
independently: both lose counts. The mark names the owner by the application, the stream and the update, so it is found
however the address of the store is written. A state whose keys begin with the prefix of another one is found by that
one's mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.checkpoint.model.layout import is_followed_by
from kinesis_trident.common.errors import UNREADABLE
from kinesis_trident.common.visible_text import count_noun, make_reason
from kinesis_trident.trident.errors import (
    ForeignValueError,
    ReplayDiffersError,
    StateBehindError,
    StateOwnedError,
)
from kinesis_trident.trident.stores.key_text import KeyDigest, mark_key

GLOBALS = "global aggregates"
"""The update that a prefix belongs to if only global aggregates stand under it, each with a mark of its own."""


@dataclass(frozen=True, slots=True)
class Owner:
    """An update of a topology, and what its driver knows of its state.

    `stream` is the name of the stream's state in ZooKeeper, which numbers the batches. `updates` are the names of all
    updates of that stream, and `GLOBALS` if one is global: a mark of another one is left over from earlier code.
    `is_global`: it updates one key only. `applied`: the newest batch that the state certainly holds; 0 if none is
    known. `merged`: the names of streams that were read alone before, and are part of this one now.
    """

    application: str
    stream: str
    update: str
    updates: frozenset[str] = frozenset()
    is_global: bool = False
    applied: int = 0
    merged: frozenset[str] = frozenset()

    @classmethod
    def of(cls, facts: StateFacts, update: str, updates: frozenset[str], *, is_global: bool = False) -> Owner:
        """Return the owner of an update of a batch."""
        applied = facts.applied.get(update, 0)
        return cls(facts.application, facts.home, update, updates, is_global, applied, facts.merged)


class Mark(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`[application, stream, update, base]`: the owner, as a store keeps it.

    `base` is added to each txid in the store: the batches of an owner that took the place of another application come
    after those of that one.
    """

    application: str
    stream: str
    update: str
    base: int = 0

    def __str__(self) -> str:
        return f"{self.application}/{self.stream}/{self.update}"


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The keys of one state in a store: those of its own marks, and those of owners whose keys would contain its own.

    Args:
        owner: the update.
        where: the store, for errors.
        prefix: of the keys.
        global_key: of a global aggregate.
        accepted: the option `acceptOwner`: the owner that gave the place up, or whose keys are others for sure.
        accepted_loss: the option `acceptLossUpTo`.
        accepted_replay: the option `acceptReplay`.
        root: the store's, see `ByteStore.root`.
    """

    owner: Owner
    where: str
    prefix: str
    global_key: str
    accepted: str = ""
    accepted_loss: int = 0
    accepted_replay: int = 0
    root: str = ""
    own: tuple[str, ...] = field(init=False)
    others: tuple[str, ...] = field(init=False)
    register: str = field(init=False)

    def __post_init__(self) -> None:
        own = [mark_key(self.prefix)]
        if self.owner.is_global:
            own.append(mark_key(self.prefix, self.global_key))
        prefixes = (self._start[:size] for size in range(len(self.root), len(self._start)))
        object.__setattr__(self, "own", tuple(own))
        object.__setattr__(self, "register", mark_key(self.root, "$PREFIXES$", 1))
        object.__setattr__(self, "others", tuple(mark_key(p) for p in prefixes if p != self.prefix))

    def claim(self, raws: Sequence[bytes | None], fence: int | None, txid: int) -> list[Mark]:
        """Return the marks that stand under `own` from now on.

        Args:
            raws: the bytes that stand there.
            fence: the txid of the fence.
            txid: of the batch that begins.

        Raises:
            StateOwnedError: another owner has the place.
            ForeignValueError: another program's value stands there.
        """
        names = [GLOBALS, self.owner.update] if self.owner.is_global else [self.owner.update]
        found = [*zip(names, self.own, raws, strict=True)]
        # From the end: a refusal names a single update first.
        claimed = [
            self._claim(update, key, self._decode(key, raw), fence, txid) for update, key, raw in found[::-1]
        ]
        return claimed[::-1]

    def check_others(self, raws: Sequence[bytes | None]) -> None:
        """Check that no other state's keys contain those of this one.

        Raises:
            StateOwnedError: one does.
            ForeignValueError: another program's value stands there.
        """
        for key, raw in zip(self.others, raws, strict=True):
            found = self._decode(key, raw)
            if found is not None and found.update != GLOBALS:
                self._check_apart(self._mine, self._start, found, key)

    def read_register(self, raw: bytes | None) -> dict[str, str]:
        """Return the register of the store: for the mark of each owner the text with which its keys begin.

        Raises:
            ForeignValueError: another program's value stands there.
        """
        found = read_mark(self.where, self.register, raw, dict[str, str], "the register of prefixes")
        return found or {}

    @property
    def entry(self) -> dict[str, str]:
        """The entry of this place in the register."""
        return {self.own[-1]: self._start}

    def find_contained(self, register: Mapping[str, str]) -> list[str]:
        """Return the marks of the owners whose keys this state would contain, if it is new."""
        if self.owner.is_global:
            return []
        return [
            key for key, start in register.items() if key not in self.own and start.startswith(self.prefix)
        ]

    def check_contained(
        self, register: Mapping[str, str], keys: Sequence[str], raws: Sequence[bytes | None]
    ) -> None:
        """Check that this state, which is new, does not contain the keys of others, which it would stop.

        Raises:
            StateOwnedError: it does.
            ForeignValueError: another program's value stands there.
        """
        for key, raw in zip(keys, raws, strict=True):
            found = self._decode(key, raw)
            if found is not None:
                self._check_apart(found, register[key], self._mine, key, found)

    def _check_apart(self, inner: Mark, start: str, outer: Mark, key: str, other: Mark | None = None) -> None:
        other = other or outer
        if self._is_left_over(other) or self._is_accepted(other):
            return
        msg = (
            f"{self.where}: the keys of {inner} begin with {start!r}, and so can those of {outer} (mark {key!r}): they "
            "would mix up their values. Nothing was written. Give this state another table, hash or folder, or each of "
            "them a keyPrefix that does not begin with the other's. If no key of the other can be one of these, or it "
            f"is no longer updated, set the option acceptOwner={str(other)!r} of this state"
        )
        raise StateOwnedError(msg)

    def check_applied(self, fence: int | None) -> str:
        """Return a warning if the store has forgotten batches, and this was accepted; else the empty string.

        Raises:
            StateBehindError: the store has lost batches that were applied.
        """
        applied = self.owner.applied
        if (fence or 0) >= applied:
            return ""
        holds = f"knows no batch after {fence}" if fence is not None else "does not know of any batch"
        what = (
            f"{self.where} {holds} of the state of {self._mine}, to which batch {applied} was applied: it came back "
            "from an older copy, lost its data, or is another store"
        )
        if self.accepted_loss >= applied:
            return f"{what}. acceptLossUpTo={self.accepted_loss} accepts that"
        msg = (
            f"{what}. Nothing was written. Restore its data and start the query again; or accept that what batches up "
            f"to {applied} added is lost, with the option acceptLossUpTo={applied} of this state (docs/states.md)"
        )
        raise StateBehindError(msg)

    def check_replay(self, before: KeyDigest, now: KeyDigest, txid: int) -> str:
        """Return a warning if a replay of a batch updates other keys, and this was accepted; else the empty string.

        Raises:
            ReplayDiffersError: it does.
        """
        if before.txid != now.txid or before == now:
            return ""
        keys = (
            f"{count_noun(now.number, 'key')} instead of {before.number}"
            if now.number != before.number
            else "other keys"
        )
        what = f"{self.where}: the replay of batch {txid} updates {keys} of {self._mine}"
        if self.accepted_replay == txid:
            return f"{what}. acceptReplay={txid} accepts that"
        msg = (
            f"{what}: a lookup or the code has changed since the attempt before, or records have expired. This "
            "attempt has written nothing: keys that only the attempt before has updated would keep its values, and "
            "their records count twice. Start the query with what it used then, until the batch is done; or accept "
            f"that with the option acceptReplay={txid} of this state (docs/states.md)"
        )
        raise ReplayDiffersError(msg)

    @property
    def _start(self) -> str:
        return self.prefix + self.global_key if self.owner.is_global else self.prefix

    @property
    def _ways_out(self) -> str:
        # All keys begin with the empty prefix of the other one.
        return "keyPrefix, table, hash or folder" if self.prefix else "table, hash or folder"

    @property
    def _mine(self) -> Mark:
        owner = self.owner
        return Mark(owner.application, owner.stream, owner.update)

    def _claim(self, update: str, key: str, found: Mark | None, fence: int | None, txid: int) -> Mark:
        owner = self.owner
        mine = Mark(owner.application, owner.stream, update)
        if found is None:
            # The first batch, or the first one with a release that writes marks.
            return mine
        # The next batch comes after those in the store, however they are numbered.
        after = 0 if fence is None else fence - txid + 1
        if self._is_of_topology(found) and (
            found.update == update or found.update not in owner.updates or self._is_accepted(found)
        ):
            # The numbers of a stream that was read alone go on, or begin again.
            base = found.base if found.stream == owner.stream else max(found.base, after)
            return msgspec.structs.replace(mine, base=base)
        if self._is_accepted(found):
            return msgspec.structs.replace(mine, base=after)
        msg = (
            f"{self.where}: the keys of {mine} belong to {found} (mark {key!r}): each would count on the "
            f"other's values. Nothing was written. Give this state another {self._ways_out}. To "
            f"take over from the other, stop that one, and set the option acceptOwner={str(found)!r} of this "
            "state"
        )
        raise StateOwnedError(msg)

    def _is_left_over(self, found: Mark) -> bool:
        """Return True for a mark of earlier code of the same topology: of one run at a time, so nobody else's."""
        return self._is_of_topology(found) and found.update not in self.owner.updates

    def _is_of_topology(self, found: Mark) -> bool:
        owner = self.owner
        if found.application != owner.application:
            return False
        return is_followed_by(found.stream, owner.stream, owner.merged)

    def _is_accepted(self, found: Mark) -> bool:
        if not self.accepted:
            return False
        # A global aggregate has two marks, one of which names no update.
        whole = f"{found.application}/{found.stream}/"
        return str(found) == self.accepted or (
            found.update == GLOBALS and self.owner.is_global and self.accepted.startswith(whole)
        )

    def _decode(self, key: str, raw: bytes | None) -> Mark | None:
        mark: Mark | None = read_mark(self.where, key, raw, Mark, "the mark of an owner")
        return mark


def read_mark(where: str, key: str, raw: bytes | None, kind: Any, what: str) -> Any:
    """Return what stands beside the keys of a state under a key of its own; None if nothing does.

    Raises:
        ForeignValueError: it is something else.
    """
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        why = make_reason(str(error))
        msg = (
            f"{where}, key {key!r} holds {raw[:80]!r}, which is not {what} ({why}): another program writes here. Use "
            "another keyPrefix, or remove that key"
        )
        raise ForeignValueError(msg) from None
