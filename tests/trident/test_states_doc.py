"""docs/states.md: its code runs, its options are all there are, and its errors exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kinesis_trident.trident import errors
from kinesis_trident.trident.stores.dynamodb import DynamoDBOptions
from kinesis_trident.trident.stores.files import FileOptions
from kinesis_trident.trident.stores.memcached import MemcachedOptions
from kinesis_trident.trident.stores.memory import MemoryOptions
from kinesis_trident.trident.stores.options import MapOptions
from kinesis_trident.trident.stores.redis import RedisOptions
from kinesis_trident.trident.stores.sql import SqlOptions
from kinesis_trident.trident.testing import BackingMapConformance
from kinesis_trident.trident.testing.conformance import Connect

TEXT = (Path(__file__).parents[2] / "docs" / "states.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
OPTIONS = dict(re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", TEXT.partition("## Options")[2], re.MULTILINE))
KINDS = [MapOptions, DynamoDBOptions, FileOptions, MemcachedOptions, MemoryOptions, RedisOptions, SqlOptions]

NAMES: dict[str, Any] = {}
for block in BLOCKS:
    exec(block, NAMES)


class TestTheDocumentsOwnStore(BackingMapConformance):
    @pytest.fixture
    def connect(self) -> Connect:
        shelf = NAMES["Shelf"]()
        return lambda kind: shelf


def test_all_blocks_were_found() -> None:
    assert len(BLOCKS) == TEXT.count("```python")


def test_the_options_are_all_there_are() -> None:
    fields = {field.encode_name: field for kind in reversed(KINDS) for field in msgspec.structs.fields(kind)}
    assert set(OPTIONS) >= set(fields)
    for name, field in fields.items():
        default = "" if field.default in {None, ""} else str(field.default)
        assert OPTIONS[name] == default, name


def test_the_errors_exist() -> None:
    table = TEXT.partition("\n## Errors\n")[2]
    named = re.findall(r"`(\w+Error)`", table)
    assert len(named) >= 8
    for name in named:
        assert issubclass(getattr(errors, name), errors.TridentError)
