from __future__ import annotations

import base64
import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis.pages.payloads import decode_payloads, join_payloads

COUNTING = pa.proxy_memory_pool(pa.default_memory_pool())


def as_json(payloads: Sequence[bytes]) -> list[msgspec.Raw]:
    return [msgspec.Raw(b'"%s"' % base64.b64encode(one)) for one in payloads]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9), min_size=1))
def test_payloads_come_back(payloads: list[bytes]) -> None:
    found = decode_payloads(as_json(payloads))
    assert found.to_pylist() == payloads
    assert found.equals(join_payloads(payloads))


@pytest.mark.parametrize(
    "sizes", [range(3000), range(100_000, 100_004), [0, 0, 0]], ids=["parts", "large", "empty"]
)
def test_payloads_of_any_size_take_exactly_their_memory(sizes: Sequence[int]) -> None:
    rng = random.Random(1)
    payloads = [rng.randbytes(size) for size in sizes]
    found = decode_payloads(as_json(payloads))
    found.validate(full=True)
    assert found.to_pylist() == payloads
    content = found.buffers()[2]
    assert (0 if content is None else content.size) == sum(sizes)


def test_payloads_of_a_small_page_are_in_memory_once() -> None:
    given, pool = as_json([bytes(1000)] * 500), pa.default_memory_pool()
    pa.set_memory_pool(COUNTING)
    try:
        # What a pool has given must not outlive it.
        size = decode_payloads(given).nbytes
    finally:
        pa.set_memory_pool(pool)
    most = COUNTING.max_memory()
    assert most is not None
    assert size <= most < 1.1 * size


@pytest.mark.parametrize("among", [b"", bytes(100_000)], ids=["small", "large"])
@pytest.mark.parametrize(
    "texts",
    [
        ['"a?=="'],
        ['"????AAE="'],
        ['"AA\u00e9="'],
        ['"AA=E"'],
        ['"===="'],
        ['"AA==AA=="'],
        ['"AAAAA"', '"AAA"'],
        ['"AA\\nE="'],
        ["null"],
        ["123456"],
        ["123456", '"AA=="', "123456"],
    ],
    ids=str,
)
def test_what_is_not_base64_is_refused(texts: list[str], among: bytes) -> None:
    given = [msgspec.Raw(text.encode()) for text in texts]
    with pytest.raises(ValueError):  # noqa: PT011
        decode_payloads([*as_json([among]), *given, *as_json([among])])
