"""A script of faults: which calls go wrong, and how. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

__all__ = ["Cut", "Fault", "FaultScript", "Refuse", "Slow"]


class Refuse(msgspec.Struct, frozen=True, tag="refuse", forbid_unknown_fields=True):
    """The call is refused with an error of AWS and has no effect; from `status` 500 on it is the service's fault."""

    code: str
    message: str = "scripted"
    status: int = 400

    @classmethod
    def throttled(cls) -> Refuse:
        """The shard's throughput is used up."""
        return cls("ProvisionedThroughputExceededException", "Rate exceeded for shard")

    @classmethod
    def expired(cls) -> Refuse:
        """The iterator is too old."""
        return cls("ExpiredIteratorException", "Iterator expired")

    @classmethod
    def failed(cls) -> Refuse:
        """The service has an internal fault."""
        return cls("InternalFailure", "Internal service failure", 500)


class Cut(msgspec.Struct, frozen=True, tag="cut", forbid_unknown_fields=True):
    """The call has its effect, but the connection is closed after this share of the answer's body.

    With 0 not even the head of the answer is sent. boto3 by itself takes an answer that was cut for an empty one, and
    repeats the call only when there was none at all.
    """

    after: float = 0.5


class Slow(msgspec.Struct, frozen=True, tag="slow", forbid_unknown_fields=True):
    """The call is answered only after so many seconds, in real time."""

    seconds: float


Fault = Refuse | Cut | Slow


@dataclass(slots=True)
class _Line:
    call: str
    fault: Fault
    stream: str | None
    shard: str | None
    skip: int
    times: int | None


@dataclass(slots=True)
class FaultScript:
    """Faults by call, each used up by the calls that match it, in the order in which they were added."""

    _lines: list[_Line] = field(default_factory=list)

    def add(
        self,
        call: str,
        fault: Fault,
        *,
        stream: str | None = None,
        shard: str | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Let calls go wrong: the `times` (None: all) after the first `skip` of those that match."""
        self._lines.append(_Line(call, fault, stream, shard, skip, times))

    def clear(self) -> None:
        """From here on nothing goes wrong."""
        self._lines.clear()

    @property
    def left(self) -> int:
        """How many entries have not been used up."""
        return len(self._lines)

    def next(self, call: str, stream: str | None, shard: str | None) -> Fault | None:
        """The fault for a call that comes now, if any."""
        for line in self._lines:
            wanted = (line.call, line.stream or stream, line.shard or shard)
            if wanted != (call, stream, shard):
                continue
            if line.skip:
                line.skip -= 1
                continue
            if line.times is not None:
                line.times -= 1
                if not line.times:
                    self._lines.remove(line)
            return line.fault
        return None
