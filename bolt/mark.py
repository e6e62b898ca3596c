"""The identity of a batch, and the mark that a table keeps of the batch written last: one rule compares them. Pure."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field

from kinesis_trident.bolt.errors import OtherHomeError, StaleBatchError, TwiceError
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.layout import is_followed_by, name_of_home

MARK = "kinesis-trident"
"""The folder of our files below a table's, and the key of what a table of files keeps of its writers."""


@dataclass(frozen=True, slots=True)
class WriterMark:
    """What a table keeps of the batch that an application wrote last; a release before has written less of it.

    Attributes:
        application: the option `applicationName`.
        epoch: of the run.
        txid: of the batch.
        home: as of `Batch`; empty if it is not known.
        token: as of `Batch`; empty if it is not known.
        files: the number of files that were added; None if it is not known.
    """

    application: str
    epoch: int
    txid: int
    home: str = ""
    token: str = ""
    files: int | None = None


@dataclass(frozen=True, slots=True)
class New:
    """The table holds nothing of the batch."""


@dataclass(frozen=True, slots=True)
class Again:
    """The table holds what an earlier attempt at the batch has written, or this call has, if an answer was lost."""

    mark: WriterMark


@dataclass(frozen=True, slots=True)
class Batch:
    """An attempt at a batch, as sinks know it.

    Attributes:
        application: the option `applicationName`.
        home: the name of the stream's state in ZooKeeper, which numbers the batches; empty where none does.
        merged: the names that the states of its streams had while they were read alone.
        epoch: of the run.
        txid: of the batch.
        token: of the attempt.
    """

    application: str = ""
    home: str = ""
    merged: frozenset[str] = frozenset()
    epoch: int = 0
    txid: int = 0
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def folder(self) -> str:
        """The folder below a table's of the files of the batch, of all attempts."""
        application = hashlib.sha256(self.application.encode()).hexdigest()[:16]
        return f"{MARK}/{application}/{self.txid}"

    def mark(self, files: int | None = None) -> WriterMark:
        """Return the mark that this attempt leaves."""
        return WriterMark(self.application, self.epoch, self.txid, self.home, self.token, files)

    def meet(self, mark: WriterMark | None, where: str, *, has_put: bool = False) -> New | Again:
        """Return what a table holds of this batch, by the mark in it; None is no mark.

        `has_put`: this call has written to the table already, perhaps in vain.

        Raises:
            OtherHomeError: the mark is of another stream, whose batches have numbers of their own.
            FencedError: a run of a higher epoch has written.
            StaleBatchError: this application has written a later batch.
            TwiceError: another call in this attempt has written.
        """
        if mark is None:
            return New()
        self._check_home(mark, where)
        self._check_newest(mark, where)
        if mark.txid < self.txid:
            return New()
        if self.is_own(mark) and not has_put:
            raise self.twice(where)
        return Again(mark)

    def is_own(self, mark: WriterMark) -> bool:
        """Return whether this attempt has left a mark."""
        return (mark.epoch, mark.token) == (self.epoch, self.token)

    def twice(self, where: str) -> TwiceError:
        """Return the error for a table into which another call in this attempt has written."""
        return TwiceError(
            f"write has called a sink twice for {where} in batch {self.txid}: the second call would replace the rows "
            "of the first. Join the rows by df.unionByName, and call it once"
        )

    def _check_home(self, mark: WriterMark, where: str) -> None:
        if not (mark.home and self.home) or is_followed_by(mark.home, self.home, self.merged):
            return
        if not name_of_home(mark.home) and mark.epoch > self.epoch:
            # It may have put this stream together with others while this run was paused.
            return
        msg = (
            f"batches of {self.application!r} from {_describe(mark.home)} stand in {where}; this is "
            f"{_describe(self.home)}, and nothing was written. Give each query its own applicationName"
        )
        raise OtherHomeError(msg)

    def _check_newest(self, mark: WriterMark, where: str) -> None:
        lost = (
            "If this is the application's newest run, its data in ZooKeeper was lost or restored from an older copy, "
            "or another query has the same applicationName: use a new applicationName"
        )
        if mark.epoch > self.epoch:
            msg = (
                f"a newer run of application {self.application!r} has written to {where}: its epoch is {mark.epoch}, "
                f"this run has epoch {self.epoch} and writes nothing. {lost}"
            )
            raise FencedError(msg, self.epoch, mark.epoch)
        if mark.txid > self.txid:
            msg = (
                f"application {self.application!r} has written batch {mark.txid} to {where}, so batch {self.txid} "
                f"is not written: it would replace another one of this number. {lost}"
            )
            raise StaleBatchError(msg)


def _describe(home: str) -> str:
    name = name_of_home(home)
    return f"stream {name}" if name else "several streams"
