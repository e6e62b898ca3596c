"""A script of faults for calls. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class Refuse(msgspec.Struct, frozen=True, tag="refuse", forbid_unknown_fields=True):
    """Refuses a call with an error of AWS, without effect; from `status` 500 on it is the service's fault."""

    code: str
    message: str = "scripted"
    status: int = 400

    @classmethod
    def throttled(cls) -> Refuse:
        """Return a refusal because the shard's throughput is exceeded."""
        return cls("ProvisionedThroughputExceededException", "Rate exceeded for shard")

    @classmethod
    def expired(cls) -> Refuse:
        """The iterator is too old."""
        return cls("ExpiredIteratorException", "Iterator expired")

    @classmethod
    def failed(cls) -> Refuse:
        """Return a refusal because of an internal fault of the service."""
        return cls("InternalFailure", "Internal service failure", 500)


class Cut(msgspec.Struct, frozen=True, tag="cut", forbid_unknown_fields=True):
    """Lets the call take effect, but closes the connection after this share of the answer's body.

    With 0 not even the head of the answer is sent. boto3 by itself takes a truncated answer for an empty one, and
    retries the call only if there was no answer at all.
    """

    after: float = 0.5


class Slow(msgspec.Struct, frozen=True, tag="slow", forbid_unknown_fields=True):
    """Answers the call only after so many seconds of real time, or the body only with so many bytes a second."""

    seconds: float = 0.0
    bytes_per_second: float | None = None


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
    """Faults by call; matching calls use them up in the order in which they were added."""

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
        """Make matching calls fail: `times` of them (None: all) after the first `skip`."""
        self._lines.append(_Line(call, fault, stream, shard, skip, times))

    def clear(self) -> None:
        """Remove all faults."""
        self._lines.clear()

    @property
    def left(self) -> int:
        """Return the number of entries that are not used up."""
        return len(self._lines)

    def next(self, call: str, stream: str | None, shard: str | None) -> Fault | None:
        """Return the fault for the current call, if any."""
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
