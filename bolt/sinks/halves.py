"""Writes many rows in one statement, and finds by halves those that a database does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa

from kinesis_trident.common.database import Cause, cause_of, words_of


@contextmanager
def savepoint(connection: sa.Connection) -> Iterator[None]:
    """Take what the block has written back on an error, and leave the transaction as it was before."""
    nested = connection.begin_nested()
    try:
        yield
    except BaseException:
        # A deadlock has ended the whole of the transaction, the savepoint too: this is not what is to be told.
        with suppress(sa.exc.DBAPIError):
            nested.rollback()
        raise
    nested.commit()


def write_in_halves(first: int, last: int, write: Callable[[int, int], None]) -> dict[int, str]:
    """Write the rows from `first` to before `last`; return those that are refused alone, with the database's words.

    Args:
        first: the number of the first row.
        last: the number after the last one.
        write: writes the rows of two such numbers, or none of them if it raises an error.
    """
    refused: dict[int, str] = {}
    parts = [(first, last)] if first < last else []
    while parts:
        first, last = parts.pop()
        try:
            write(first, last)
        except sa.exc.DBAPIError as error:
            if cause_of(error) not in (Cause.RECORD, Cause.TAKEN):
                raise
            if last - first == 1:
                refused[first] = words_of(error)
            else:
                middle = (first + last) // 2
                parts += [(middle, last), (first, middle)]
    return refused
