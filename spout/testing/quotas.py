"""The limits of a shard, counted as the service counts them. Pure; times are epoch milliseconds.

"Quotas and limits" of Kinesis Data Streams: 5 GetRecords calls and 2 MB a second, so an answer of 10 MiB blocks the
shard for the next 5 seconds; 1,000 records and 1 MiB written a second. SubscribeToShard: a subscription lasts 5
minutes, and blocks another one for 5 seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from kinesis_trident.spout.kinesis import ThrottledError


class CallTimes:
    """The times of all calls, in epoch milliseconds, by name and by what they were for (a shard, or None)."""

    def __init__(self) -> None:
        self._times: defaultdict[tuple[str, str | None], list[int]] = defaultdict(list)

    def note(self, call: str, subject: str | None, now: int) -> None:
        """Note a call."""
        self._times[call, subject].append(now)

    def most(self, call: str, seconds: float, subject: str | None = None) -> int:
        """Return the most calls of one name in any window of so many seconds; for one subject if it is given."""
        found = (
            some for (name, what), some in self._times.items() if name == call and subject in (None, what)
        )
        times = sorted(time for some in found for time in some)
        most = first = 0
        for last, time in enumerate(times):
            while times[first] <= time - seconds * 1000:
                first += 1
            most = max(most, last - first + 1)
        return most


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of each shard; None for no limit.

    Attributes:
        read_calls: GetRecords calls in any second.
        read_bytes: payload read in any second; a larger answer of n bytes blocks for n / `read_bytes` seconds.
        write_records: records written in any second.
        write_bytes: payload and keys written in any second.
        subscription_ms: the duration of a subscription.
        resubscribe_ms: the time after the start of a subscription until the consumer can get another one to the shard.
        registration_ms: the duration of a consumer's registration; None for none.
        deregistration_ms: how long a deregistered consumer is still there, DELETING; None for not at all.
    """

    read_calls: int | None = 5
    read_bytes: int | None = 2 * 2**20
    write_records: int | None = 1000
    write_bytes: int | None = 2**20
    subscription_ms: int | None = 300_000
    resubscribe_ms: int | None = 5_000
    registration_ms: int | None = None
    deregistration_ms: int | None = None

    @classmethod
    def none(cls) -> Quotas:
        """No bounds at all."""
        return cls(None, None, None, None, None, None)


@dataclass(slots=True)
class ShardQuota:
    """The used quotas of one shard."""

    name: str
    _calls: deque[int] = field(default_factory=deque)
    _answers: deque[tuple[int, int]] = field(default_factory=deque)
    _blocked_until: float = 0.0
    _writes: deque[tuple[int, int]] = field(default_factory=deque)

    def read(self, quotas: Quotas, now: int) -> None:
        """Count a GetRecords call.

        Raises:
            ThrottledError: it exceeds the limit.
        """
        while self._calls and self._calls[0] <= now - 1000:
            self._calls.popleft()
        while self._answers and self._answers[0][0] <= now - 1000:
            self._answers.popleft()
        calls = quotas.read_calls is not None and len(self._calls) >= quotas.read_calls
        size = sum(size for _, size in self._answers)
        full = quotas.read_bytes is not None and size >= quotas.read_bytes
        if calls or full or now < self._blocked_until:
            raise ThrottledError(self._message)
        self._calls.append(now)

    def note_answer(self, size: int, quotas: Quotas, now: int) -> None:
        """Count the payload of an answer."""
        self._answers.append((now, size))
        if quotas.read_bytes is not None and size > quotas.read_bytes:
            self._blocked_until = now + size * 1000 / quotas.read_bytes

    def write(self, size: int, quotas: Quotas, now: int) -> None:
        """Count a record to write.

        Raises:
            ThrottledError: it exceeds a limit; a single record never does.
        """
        while self._writes and self._writes[0][0] <= now - 1000:
            self._writes.popleft()
        written = sum(before for _, before in self._writes)
        records = quotas.write_records is not None and len(self._writes) >= quotas.write_records
        if records or (quotas.write_bytes is not None and written and written + size > quotas.write_bytes):
            raise ThrottledError(self._message)
        self._writes.append((now, size))

    @property
    def _message(self) -> str:
        return f"Rate exceeded for shard {self.name}"
