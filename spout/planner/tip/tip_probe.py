"""Looks ahead for the planning process: finds out whether shards have new records, without delivering them."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.spout.kinesis import (
    AskIterator,
    AskRecords,
    IteratorExpiredError,
    KeyAwayError,
    Kinesis,
    KinesisError,
    Page,
    ThrottledError,
    Unavailable,
    UnreadableAnswerError,
    lasting_error,
    locate_error,
    make_calls,
)
from kinesis_trident.spout.kinesis.aggregation import deaggregate_page
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import Budget
from kinesis_trident.spout.kinesis.record_batches import NO_RECORDS, arrival_at, position_at, select_from
from kinesis_trident.spout.planner.tip.looks import Look, Question, forget_request, join_answers
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position, ShardEnd

log = logging.getLogger(__name__)

_ENDLESS = 60.0
"""Seconds of empty answers, "0 behind", after which the log says that a closed shard does not end."""

_STEPS = 4
"""The calls of one look: it continues through empty answers behind the tip, but leaves a call for readers."""

_THREADS = min(32, 8 * (os.cpu_count() or 4))
"""The number of shards that are read ahead in parallel, which mostly wait."""

_AT_ONCE = 64
"""The looks whose calls are under way at once, of as many kept connections; then is checked whether enough was found.

One thread makes them all: changing threads costs more than a call.
"""

UNDER_WAY = 64 * 2**20
"""Bytes of answers under way at once, if they are as large as the last ones: sockets hold what is not read yet."""


class Answers(NamedTuple):
    """The looks at shards, what they have left of the `budgets`, and when that was known by the clock.

    `error`: a permanent one, for which not all have a look.
    """

    looks: dict[str, Look]
    budgets: dict[str, Budget]
    error: KinesisError | None
    at: float


_Looking = Generator[AskIterator | AskRecords, Any, Look]
"""A look: yields its calls, is given their answers or errors, and returns what it has found."""


class TipProbe:
    """Looks beyond positions, at many shards at once; the caller paces the looks at a shard.

    A look goes on from the last one with its iterator while the position stays: an idle shard costs one call a look.

    Args:
        kinesis: the calls.
        layout: resolves the names of the shards.
        patience: seconds after which a look at many shards stops, if it found anything.
        deaggregate: whether the reader splits aggregates.
        readable_within: seconds for which answers that cannot be read are taken for a passing fault, and a key that
            cannot be used for one that is enabled again.
        wall: epoch milliseconds, for a server that does not report the time.
        clock: seconds that never step back, of the budgets and the patience.
        executor: reads ahead, and is shut down at the end; None for threads of its own.

    Attributes:
        ended_open: how often a shard that is listed as open was answered without a next iterator; each time the shards
            are to be listed again.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        layout: Layout,
        *,
        patience: float = 0.25,
        deaggregate: bool = True,
        readable_within: float = 120.0,
        wall: Callable[[], int] = lambda: int(time.time() * 1000),
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        self._kinesis = kinesis
        self._layout = layout
        self._patience = patience
        self._deaggregate = deaggregate
        self._readable_within = readable_within
        self._wall = wall
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(_THREADS, thread_name_prefix="probe")
        self.ended_open = self._largest = 0

    def look(self, questions: Mapping[str, Question], patience: float = 0.0) -> Answers:
        """Look at shards, in their order.

        Shards that were not reached in time are left out: with very many shards, or a slow endpoint, the query reads
        the first findings before the others are known. `patience`: as of the class, if it is more.
        """
        enough = self._clock() + max(self._patience, patience)
        found, left, asked = dict[str, Look](), dict[str, Budget](), list(questions.items())
        while asked:
            many = max(1, min(_AT_ONCE, UNDER_WAY // max(1, self._largest)))
            part, asked, self._largest = asked[:many], asked[many:], 0
            left |= {shard: question.budget for shard, question in part}
            answers = self._answer({shard: self._look(shard, one, left) for shard, one in part}, left)
            found |= answers.looks
            if answers.error or (answers.at >= enough and any(look.more for look in found.values())):
                return answers._replace(looks=found)
        return Answers(found, left, None, self._clock())

    def close(self) -> None:
        """End the threads, without waiting for what is read ahead."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def begin_ahead(self, shard: str, question: Question, held: Look | None) -> Future[Answers]:
        """Read a shard ahead, in another thread: from a position, or on from what is `held` of it.

        A held look comes back unchanged if only the reader may take what follows it. It stays as good as it was if a
        call was refused.
        """
        left = {shard: question.budget}
        if held is not None and held.cursor.page is not None:
            looking = self._read_on(shard, question, left, held, held.cursor.page)
        else:
            looking = self._look(shard, question, left)
        return self._executor.submit(self._answer, {shard: looking}, left)

    def _read_on(
        self, shard: str, question: Question, left: dict[str, Budget], held: Look, page: Page
    ) -> _Looking:
        """Return a look with the next answer joined to the one it holds."""
        following = held.next_cursor
        if following is None or following.iterator is None:
            return held
        further = yield from self._get(shard, following.iterator, question.limit, left)
        if further.size > 2 * question.most:
            return held
        if further.next_iterator is None:
            # The reader finds out whether the shard ends here; it does not take the answer before for the tip.
            cursor = replace(held.cursor, page=replace(page, behind_ms=None))
            return replace(held, cursor=cursor, next_cursor=None)
        last = _end_of(further.records) if further.records.num_rows else following.position
        return replace(
            self._note_answer(held, held.cursor.iterator, True, further),
            arrival=held.arrival,
            cursor=replace(held.cursor, page=join_answers(page, forget_request(further, question.limit))),
            next_cursor=ShardCursor(last, further.next_iterator),
        )

    def _answer(self, looks: Mapping[str, _Looking], left: dict[str, Budget]) -> Answers:
        """Make some looks, with the calls of all of them under way at once; each says what is `left` of its budget."""
        found: dict[str, Look] = {}
        asked, outcomes = [*looks], iter([None] * len(looks))
        try:
            while asked:
                # An answer is dropped, but for the little that a look keeps, before the next one is read.
                going = {at: _go_on(looks[at], outcomes) for at in asked}
                found |= {at: one for at, one in going.items() if isinstance(one, Look)}
                calls = {at: one for at, one in going.items() if not isinstance(one, Look)}
                asked, outcomes = [*calls], make_calls(self._kinesis, [*calls.values()])
        except KinesisError as error:
            # The calls of those that are given up count, and what their connections bring is read.
            for look in looks.values():
                look.close()
            deque(outcomes, maxlen=0)
            return Answers(found, left, error, self._clock())
        return Answers(found, left, None, self._clock())

    def _look(self, shard: str, question: Question, left: dict[str, Budget]) -> _Looking:
        last, position = question.last, question.position
        look = Look(ShardCursor(position)) if last is None else last.move_to(position, self._wall())
        if isinstance(position, ShardEnd):
            return replace(look, more=False, at=self._wall())
        try:
            return (yield from self._walk(shard, question, left, look))
        except IteratorExpiredError:
            look = replace(look, cursor=ShardCursor(position))
        except (ThrottledError, Unavailable) as error:
            return self._refuse(shard, look, error)
        try:
            return (yield from self._walk(shard, question, left, look))
        except (IteratorExpiredError, ThrottledError, Unavailable) as error:
            return self._refuse(shard, look, error)

    def _refuse(self, shard: str, look: Look, error: KinesisError) -> Look:
        match error:
            case KeyAwayError():
                why = "unusableKey"
            case ThrottledError():
                why = "throttled"
            case UnreadableAnswerError():
                why = "unreadable"
            case _:
                why = "unavailable"
        refused, now = look.refuse(why, self._wall(), str(error)), self._wall()
        lasted = (now - (refused.refused or now)) / 1000
        if isinstance(error, UnreadableAnswerError) and lasted >= self._readable_within:
            key = self._layout.key_of(shard)
            msg = f"no answer could be read for {lasted:.0f} s: {error}"
            raise locate_error(KinesisError(msg), key.stream, key.shard, look.position) from error
        if isinstance(error, KeyAwayError) and now - refused.alike >= self._readable_within * 1000:
            raise lasting_error(error) from error
        return refused

    def _walk(self, shard: str, question: Question, left: dict[str, Budget], look: Look) -> _Looking:
        key = self._layout.key_of(shard)
        iterator = look.cursor.iterator or (yield AskIterator(key.stream, key.shard, str(look.position)))
        closed = question.closed
        for step in range(_STEPS):
            # The first read of a turn is to fit after it.
            if step and left[shard].wait_of_all(self._clock(), 2) > 0:
                break
            try:
                page = yield from self._get(shard, iterator, question.limit, left)
            except KinesisError as error:
                raise locate_error(error, key.stream, key.shard, look.position) from error
            new = self._select_new(page, look.position)
            closed = closed or page.closed
            if new.num_rows or (page.next_iterator is None and closed):
                # Keep the iterator: the records that it found were not read.
                found = self._note_answer(look, iterator, True, page)
                if not new.num_rows:
                    return found
                found = replace(found, arrival=arrival_at(new, 0) or None)
                if page.next_iterator is None:
                    # The reader finds out whether the shard ends here, as often as it takes, at the pace of its calls.
                    return found
                answer = forget_request(page, question.limit) if page.size <= 2 * question.most else None
                return replace(
                    found,
                    cursor=replace(found.cursor, page=answer),
                    next_cursor=ShardCursor(_end_of(new), page.next_iterator),
                )
            if page.next_iterator is None:
                # Closed since it was listed, or an answer that is wrong: the next listing tells.
                self.ended_open += 1
                return self._note_answer(look, None, None, page)
            iterator = page.next_iterator
            if page.behind_ms == 0 and page.records.num_rows == 0 and not closed:
                return self._note_answer(look, iterator, False, page)
            # What is not new is not kept while others answer.
            page, new = replace(page, records=NO_RECORDS), NO_RECORDS
        found = self._note_answer(look, iterator, None, page)
        return self._note_endless(found, key, look.endless_since) if closed and not page.behind_ms else found

    def _get(
        self, shard: str, iterator: str, limit: int, left: dict[str, Budget]
    ) -> Generator[AskRecords, Page, Page]:
        size = 0
        try:
            page = yield AskRecords(iterator, limit)
            size = page.size
        finally:
            left[shard] = left[shard].spend(size, self._clock())
        self._largest = max(self._largest, size)
        return page

    def _note_endless(self, look: Look, key: ShardKey, since: float | None) -> Look:
        """Return a look at a closed shard that has found its tip and no end, as since then; tell that once."""
        now = self._clock()
        since = now if since is None else since
        if since <= now - _ENDLESS:
            since = math.inf
            log.warning(
                "%s is listed as closed, but its answers are empty and have a next iterator for %.0f s. Its "
                "children are not read until it ends, and Trigger.AvailableNow waits. AWS ends every closed shard, but "
                "some local servers (moto) do not. Use another one to test resharding",
                key.source,
                _ENDLESS,
            )
        return replace(look, endless_since=since)

    def _select_new(self, page: Page, position: Position) -> pa.RecordBatch:
        """Return the unread records; an iterator inside or at the end of an aggregate starts at its beginning.

        One of a time that is ahead starts now.
        """
        records = page.records
        if isinstance(position, AtTimestamp):
            records = select_from(records, position)
        elif isinstance(position, After | At) and position.record.sub >= 0:
            records = select_from(deaggregate_page(records), position)
        return records

    def _note_answer(self, look: Look, iterator: str | None, more: bool | None, page: Page) -> Look:
        now = self._wall()
        return Look(
            ShardCursor(look.position, iterator),
            more,
            page.behind_ms or 0,
            page.server_time or now,
            answered_at=now,
            before=look.ease(now),
        )


def _go_on(looking: _Looking, outcomes: Iterator[Any]) -> AskIterator | AskRecords | Look:
    """Give a look the next outcome, that of its last call; return its next call, or what it has found."""
    outcome = next(outcomes)
    try:
        return looking.throw(outcome) if isinstance(outcome, KinesisError) else looking.send(outcome)
    except StopIteration as end:
        found: Look = end.value
        return found


def _end_of(records: pa.RecordBatch) -> After:
    """Return the position behind the last Kinesis record, whatever user records it has."""
    return After(position_at(records, -1).whole)
