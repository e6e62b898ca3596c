"""Schemas written as text, such as "word string, count long": read by Spark, or without it if they are plain."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import types as T

_SIMPLE: dict[str, Callable[[], T.DataType]] = {
    "bigint": T.LongType,
    "binary": T.BinaryType,
    "boolean": T.BooleanType,
    "byte": T.ByteType,
    "date": T.DateType,
    "dec": T.DecimalType,
    "decimal": T.DecimalType,
    "double": T.DoubleType,
    "float": T.FloatType,
    "int": T.IntegerType,
    "integer": T.IntegerType,
    "long": T.LongType,
    "numeric": T.DecimalType,
    "real": T.FloatType,
    "short": T.ShortType,
    "smallint": T.ShortType,
    "string": T.StringType,
    "timestamp": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
    "tinyint": T.ByteType,
}
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|`[^`]+`|\d+|[<>(),:])", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*|`[^`]+`", re.ASCII)


def parse_schema(text: str) -> T.StructType:
    """Return the schema that a text such as "word string, tags array<string>" describes.

    Spark reads it, if there is a session. Without one only the plain form is known: no comments, no collations.

    Raises:
        Exception: the text is not a list of names with types. The class depends on who read it.
    """
    try:
        parsed = T.StructType.fromDDL(text)
    except RuntimeError:
        # Nothing that can read it runs: topologies are built without Spark in tests.
        return _Reader(text).schema()
    if not isinstance(parsed, T.StructType):
        msg = f"{text!r} is a type. Write a name before it"
        raise TypeError(msg)
    return parsed


def parse_type(text: str) -> T.DataType:
    """Return the type that a text such as "decimal(10,2)" describes.

    Raises:
        ValueError: it is not of the plain form.
    """
    reader = _Reader(text)
    found = reader.type()
    reader.expect("")
    return found


class _Reader:
    """Reads one text, token by token."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                msg = f"{text!r} cannot be read at {text[at:]!r}"
                raise ValueError(msg)
            self._tokens.append(found.group(1))
            at = found.end()
        self._tokens.append("")
        self._text = text

    def schema(self) -> T.StructType:
        """Read all of the text as fields."""
        fields = self._fields()
        self.expect("")
        return fields

    def type(self) -> T.DataType:
        """Read a type."""
        word = self._next().lower()
        if word == "array":
            self.expect("<")
            element = self.type()
            self.expect(">")
            return T.ArrayType(element)
        if word == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return T.MapType(key, value)
        if word == "struct":
            self.expect("<")
            fields = self._fields()
            self.expect(">")
            return fields
        if word in ("decimal", "dec", "numeric") and self._tokens[0] == "(":
            return self._decimal()
        if word not in _SIMPLE:
            self._refuse(word)
        return _SIMPLE[word]()

    def expect(self, token: str) -> None:
        """Read this token."""
        found = self._next()
        if found != token:
            self._refuse(found)

    def _fields(self) -> T.StructType:
        fields = []
        while True:
            name = self._next()
            if not _NAME.fullmatch(name):
                self._refuse(name)
            self._skip(":")
            kind = self.type()
            required = self._skip("not")
            if required:
                self._word("null")
            fields.append(T.StructField(name.strip("`"), kind, nullable=not required))
            if not self._skip(","):
                return T.StructType(fields)

    def _decimal(self) -> T.DecimalType:
        self.expect("(")
        precision = int(self._digits())
        scale = int(self._digits()) if self._skip(",") else 0
        self.expect(")")
        if not (precision <= 38 and scale <= precision):
            self._refuse(f"({precision},{scale})")
        return T.DecimalType(precision, scale)

    def _digits(self) -> str:
        token = self._next()
        if not token.isdigit():
            self._refuse(token)
        return token

    def _skip(self, token: str) -> bool:
        if self._tokens[0].lower() != token:
            return False
        self._next()
        return True

    def _word(self, token: str) -> None:
        if not self._skip(token):
            self._refuse(self._tokens[0])

    def _next(self) -> str:
        return self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]

    def _refuse(self, token: str) -> None:
        msg = f"{self._text!r} cannot be read at {token or 'its end'!r}"
        raise ValueError(msg)
