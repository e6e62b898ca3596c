"""States in a table of any database that SQLAlchemy supports: rows of a key and a value."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from kinesis_trident.common.database import PASSING, Cause, cause_of, engine_of, explain, words_of
from kinesis_trident.trident.errors import (
    MissingExtraError,
    StateOptionsError,
    StoreError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from kinesis_trident.trident.maps.backing import LOST, Version
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.options import MapOptions, require, without_secrets
from kinesis_trident.trident.stores.overlap import request_parts

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

log = logging.getLogger(__name__)

_CHUNK = 1_000
"""Keys in one transaction."""

_INSERTS = 20
"""Tries to set rows that other writers insert at the same time."""

_SWEEP_SECONDS = 60
"""The least time between two deletions of expired rows."""

_CHUNK_BYTES = 1 << 20
"""Bytes of values in one transaction: also escaped, less than the least `max_allowed_packet` that MySQL has had."""

_ESCAPED = (b"\0", b"\n", b"\r", b"\x1a", b'"', b"'", b"\\")
"""The bytes that the drivers of MySQL send as two."""

_LOSES_THE_LAST = {
    "postgresql": "SELECT name, setting FROM pg_settings"
    " WHERE name IN ('fsync', 'synchronous_commit') AND setting = 'off'",
    "mysql": "SHOW VARIABLES WHERE Variable_name = 'innodb_flush_log_at_trx_commit' AND Value <> '1'",
}
"""By dialect: selects the settings with which a crash of the machine loses transactions that were confirmed."""

_MAX_KEY_BYTES = {"postgresql": 2_600, "mysql": 1_020, "mariadb": 1_020, "oracle": 255, "mssql": 255}
"""By dialect: what the type of the key column, or its index, takes."""


class SqlOptions(MapOptions, kw_only=True, frozen=True, rename="camel"):
    """Options of a state in a table, which is created if it does not exist."""

    table_name: str = "kinesis_trident_state"


class SqlByteStore(ByteStore):
    """Bytes in one table, with the columns `key`, `value`, and `expires` in epoch seconds.

    Args:
        engine: the engine of the database.
        where: the database without secrets.
        table: the name of the table.
        text: the values are UTF-8, in a text column.
        expire: seconds that a key lives after it was set; 0: forever.
        clock: returns epoch seconds.
    """

    where = ""
    resends = False

    def __init__(
        self,
        engine: Engine,
        where: str,
        table: str,
        *,
        text: bool = True,
        expire: float = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        import sqlalchemy as sa
        from sqlalchemy.dialects import mysql

        self._engine = engine
        self.where = f"{where}, table {table}"
        self._text = text
        self.max_key_bytes = _MAX_KEY_BYTES.get(engine.dialect.name)
        self._expire = expire
        self._clock = clock
        key: Any = (
            sa.Text()
            .with_variant(sa.String(255), "oracle", "mssql")
            # Its collations compare "a" equal to "A", and all those of MariaDB also "a" equal to "a ".
            .with_variant(_binary_text(), "mysql", "mariadb")
        )
        value: Any = (
            sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
            if text
            else sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
        )
        self._table = sa.Table(
            table,
            sa.MetaData(),
            sa.Column("key", key, primary_key=True),
            sa.Column("value", value, nullable=False),
            sa.Column("expires", sa.Double()),
        )
        columns = self._table.c
        self._update = (
            self._table.update()
            .where(columns.key == sa.bindparam("k"))
            .values(value=sa.bindparam("v"), expires=sa.bindparam("e"))
        )
        self._insert = self._table.insert().values(
            key=sa.bindparam("k"), value=sa.bindparam("v"), expires=sa.bindparam("e")
        )
        self._delete = self._table.delete().where(columns.key == sa.bindparam("k"))
        self._select = (
            sa.select(columns.key, columns.value, columns.expires)
            .where(columns.key.in_(sa.bindparam("keys", expanding=True)))
            .order_by(columns.key)
        )
        self._expired = (
            sa.select(columns.key)
            .where(columns.expires <= sa.bindparam("now"))
            .order_by(columns.key)
            .limit(_CHUNK)
        )
        self._delete_expired = self._table.delete().where(
            columns.key == sa.bindparam("k"), columns.expires <= sa.bindparam("now")
        )
        self._sweep_at = 0.0
        self._column_bytes: int | None = None
        self._packet_bytes: int | None = None
        self._made = False

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        """See `ByteStore.get_many`; a version is the bytes themselves."""
        values: list[bytes | None] = []
        with self._tell_errors(), self._transaction(writes=False) as connection:
            now = self._clock()
            for part in _chunks(keys):
                rows = self._rows(connection, part, lock=False)
                values += [_value_if_living(rows.get(key), now) for key in part]
        return values, list(values)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        """See `ByteStore.compare_and_set_many`."""
        written: list[Version] = [LOST] * len(keys)
        for at, names, news in _parts(keys, values):
            for i, version in zip(
                at, self._compare_and_set(names, news, [versions[i] for i in at]), strict=True
            ):
                written[i] = version
        return written

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """See `ByteStore.set_many`."""
        for _, names, news in _parts(keys, values):
            for _ in range(_INSERTS):
                if self._compare_and_set(names, news, None) != [LOST] * len(names):
                    break
                # Another writer has just inserted one of them: now it exists, and is updated.
            else:
                msg = (
                    f"{self.where}: other writers have inserted and removed the rows of {names[0]!r} and others "
                    f"{_INSERTS} times. Find out what else writes this table, and give this state another one"
                )
                raise StoreError(msg)

    def end_batch(self, txid: int | None) -> None:
        """Delete the expired rows, now and then: each process looks at the whole table for them."""
        now = self._clock()
        if not self._expire or now < self._sweep_at:
            return
        self._sweep_at = now + max(self._expire / 4, _SWEEP_SECONDS)
        found = _CHUNK
        while found == _CHUNK:
            with self._tell_errors(), self._transaction() as connection:
                keys = connection.execute(self._expired, {"now": now}).scalars().all()
                found = len(keys)
                if found:
                    # By key, as all writers lock rows; a row that was set meanwhile stays.
                    connection.execute(self._delete_expired, [{"k": key, "now": now} for key in keys])

    def _compare_and_set(
        self,
        keys: Sequence[str],
        values: Sequence[bytes | None],
        versions: Sequence[Version] | None,
        *,
        again: bool = True,
    ) -> list[Version]:
        from sqlalchemy import exc

        rows: dict[str, tuple[bytes, float | None]] = {}
        with self._tell_size_errors(keys, values), self._tell_errors():
            try:
                with self._transaction() as connection:
                    self._check_column(keys, values)
                    rows = self._rows(connection, keys, lock=True)
                    return self._write(connection, rows, keys, values, versions)
            except exc.DBAPIError as error:
                if cause_of(error) not in (Cause.TAKEN, Cause.RECORD):
                    raise
                refused = error
            # Another writer may have inserted one of them meanwhile; this transaction is rolled back.
            with self._transaction(writes=False) as connection:
                if self._rows(connection, keys, lock=False) != rows:
                    return [LOST] * len(keys)
            if again:
                # It may have removed it since.
                return self._compare_and_set(keys, values, versions, again=False)
            msg = (
                f"{self.where} refused ({words_of(refused)}), and no other writer has changed these rows. "
                "Check the table's constraints and triggers; its key must be compared byte by byte"
            )
            raise StoreError(msg)

    def _write(
        self,
        connection: Connection,
        rows: Mapping[str, tuple[bytes, float | None]],
        keys: Sequence[str],
        values: Sequence[bytes | None],
        versions: Sequence[Version] | None,
    ) -> list[Version]:
        """Change the rows that still have their versions, which this transaction has locked; return the new ones."""
        now = self._clock()
        expires = now + self._expire if self._expire else None
        written: list[Version] = list(values)
        changes: dict[Any, list[dict[str, Any]]] = {self._update: [], self._insert: [], self._delete: []}
        for i, (key, value) in enumerate(zip(keys, values, strict=True)):
            row = rows.get(key)
            if versions is not None and _value_if_living(row, now) != versions[i]:
                written[i] = LOST
            elif value is None:
                if row is not None:
                    changes[self._delete].append({"k": key})
            else:
                stored = value.decode() if self._text else value
                how = self._insert if row is None else self._update
                changes[how].append({"k": key, "v": stored, "e": expires})
        for statement, parameters in changes.items():
            if parameters:
                connection.execute(statement, parameters)
        return written

    def _check_column(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        """Check that the column of the values is wide enough: a database that is not strict would cut them off.

        Raises:
            ValueTooLargeError: it is not.
        """
        if self._column_bytes is not None:
            key, size = max(
                zip(keys, map(len, (value or b"" for value in values)), strict=True), key=itemgetter(1)
            )
            if size > self._column_bytes:
                kind = "LONGTEXT" if self._text else "LONGBLOB"
                msg = (
                    f"the value of key {key!r} has {size:,} bytes, but the column `value` of {self.where} takes at "
                    f"most {self._column_bytes:,}; this key was not written. Widen it: ALTER TABLE {self._table.name} "
                    f"MODIFY value {kind} NOT NULL"
                )
                raise ValueTooLargeError(msg)

    @contextmanager
    def _tell_size_errors(self, keys: Sequence[str], values: Sequence[bytes | None]) -> Iterator[None]:
        """Tell a value that is too large for a request from a server that does not answer: both end the connection."""
        try:
            yield
        except (StoreError, StoreUnavailableError) as error:
            sizes = {key: _escaped_size(value) for key, value in zip(keys, values, strict=True) if value}
            key = max(sizes, key=sizes.__getitem__, default="")
            if self._packet_bytes is None or sizes.get(key, 0) < self._packet_bytes - _CHUNK:
                raise
            msg = (
                f"the value of key {key!r} has {sizes[key]:,} bytes in a request, but {self.where} takes requests of "
                f"at most {self._packet_bytes:,} (max_allowed_packet); this key was not written. Raise that, or store "
                "less under one key"
            )
            raise ValueTooLargeError(msg) from error

    def _rows(
        self, connection: Connection, keys: Sequence[str], *, lock: bool
    ) -> dict[str, tuple[bytes, float | None]]:
        select = self._select.with_for_update() if lock else self._select
        return {
            key: (_bytes(value), _number(expires))
            for key, value, expires in connection.execute(select, {"keys": list(keys)})
        }

    def _make(self) -> None:
        from sqlalchemy import exc, inspect

        try:
            self._table.metadata.create_all(self._engine)
        except exc.DBAPIError:
            # Another task has created it meanwhile; databases report that in different ways.
            if not inspect(self._engine).has_table(self._table.name):
                raise
        self._read_settings()
        self._made = True

    def _read_settings(self) -> None:
        """Read what the database takes, and log what it can lose."""
        dialect = self._engine.dialect.name.replace("mariadb", "mysql")
        if dialect in _LOSES_THE_LAST:
            with self._engine.connect() as connection:
                if dialect == "mysql":
                    self._packet_bytes, self._column_bytes = connection.exec_driver_sql(
                        "SELECT @@max_allowed_packet, (SELECT character_octet_length FROM information_schema.columns"
                        " WHERE table_schema = DATABASE() AND table_name = %s AND column_name = 'value')",
                        (self._table.name,),
                    ).one()
                for name, value in connection.exec_driver_sql(_LOSES_THE_LAST[dialect]):
                    log.warning(
                        "%s: %s is %s, so a crash of its machine can lose the last transactions, and nobody notices. "
                        "Set it to %s",
                        self.where,
                        name,
                        value,
                        "on" if value == "off" else "1",
                    )

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[Connection]:
        from sqlalchemy import false

        if not self._made:
            self._make()
        with self._engine.begin() as connection:
            if writes and self._engine.dialect.name == "sqlite":
                # It locks at the first write, not for FOR UPDATE; an earlier read could not become a write.
                connection.execute(self._table.delete().where(false()))
            yield connection

    @contextmanager
    def _tell_errors(self) -> Iterator[None]:
        from sqlalchemy import exc

        try:
            yield
        except exc.DBAPIError as error:
            cause, said = explain(error, self._engine, self.where)
            # Another server, or another file, may be without the table.
            self._made = self._made and cause is not Cause.AWAY
            raise (StoreUnavailableError if cause in PASSING else StoreError)(said) from None


class SqlState(MapStateFactory):
    """Makes map states in a database: `SqlState.opaque("postgresql+psycopg://user:password@host/name")`."""

    options_type: ClassVar[type[MapOptions]] = SqlOptions

    def _require(self) -> None:
        require("sqlalchemy", "sql")

    def _connect(self) -> ByteStore:
        import sqlalchemy as sa

        options = self._options
        assert isinstance(options, SqlOptions)
        where = without_secrets(self._target)
        try:
            engine = engine_of(self._target)
        except sa.exc.ArgumentError:
            msg = f"{where} is not a SQLAlchemy URL. Its form is postgresql+psycopg://user:password@host/name"
            raise StateOptionsError(msg) from None
        except ImportError as error:
            msg = f"{where} needs its database's driver ({error}). Install it, on the executors too"
            raise MissingExtraError(msg) from None
        return SqlByteStore(
            engine, where, options.table_name, text=self._serializer.text, expire=options.expire_interval_sec
        )


def _binary_text() -> Any:
    """Return the type of a text that is compared byte by byte."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql

    class BinaryText(sa.TypeDecorator[str]):
        impl = mysql.VARBINARY
        cache_ok = True

        def process_bind_param(self, value: str | None, dialect: Any) -> bytes | None:
            return None if value is None else value.encode()

        def process_result_value(self, value: Any, dialect: Any) -> str | None:
            # A table of an older release has text.
            return value if value is None or isinstance(value, str) else bytes(value).decode()

    return BinaryText(1020)


def _bytes(value: Any) -> bytes:
    """Return a value as bytes; another program may have written one of another type, where the database allows that."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    # What is no text either goes to the serializer as it is shown, which refuses it with its key.
    return (value if isinstance(value, str) else f"\0{value!r}").encode(errors="replace")


def _number(expires: Any) -> float | None:
    # A row whose expiry is NULL, or no number, never expires.
    return expires if isinstance(expires, int | float) else None


def _value_if_living(row: tuple[bytes, float | None] | None, now: float) -> bytes | None:
    return None if row is None or (row[1] is not None and row[1] <= now) else row[0]


def _escaped_size(value: bytes) -> int:
    return len(value) + sum(map(value.count, _ESCAPED))


def _parts(
    keys: Sequence[str], values: Sequence[bytes | None]
) -> Iterator[tuple[list[int], list[str], list[bytes | None]]]:
    """Yield what one transaction writes, in the order of the keys: the positions, the keys and the values."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    for part in request_parts(_CHUNK, _CHUNK_BYTES, [values[i] for i in order]):
        at = order[part]
        yield at, [keys[i] for i in at], [values[i] for i in at]


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK))
