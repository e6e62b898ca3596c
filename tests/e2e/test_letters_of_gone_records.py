"""A dead letter is replayed after its record has left the stream: its payload comes from the letter."""

from __future__ import annotations

from collections.abc import Callable

from moto_in_hand import MotoInHand
from stage import Stage

from kinesis_trident.checkpoint.model.nodes import ExternalNode


def test_a_letter_is_replayed_after_its_record_has_left_the_stream(
    own_stage: Callable[..., Stage], moto: MotoInHand
) -> None:
    stage = own_stage()
    mended = stage.folder / "mended"
    seen: list[str] = []

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "2" and not mended.exists():
            raise ValueError(text)
        return text, record.attempt

    def write(rows, _txid):  # type: ignore[no-untyped-def]
        seen.extend(row.text for row in rows.collect())

    ids = stage.put([1, 2, 3])
    options = {"retryLimit": 0, "onExhausted": "deadLetter", "deadLetter": stage.at("letters")}
    stage.start(stage.parsed(parse, **options), write)
    stage.until(stage.letters, "the letter is written")
    moto.expire(stage.stream, ids)
    mended.touch()
    number = ids[1].rpartition(":")[2]
    stage.store.external.add(stage.shard(), ExternalNode(op="replay", records=(number,)))
    stage.until(lambda: sorted(seen) == ["1", "2", "3"], "the record is delivered from its letter")
    assert [letter.data for letter in stage.letters()] == [b"2"]
