"""A dead letter of a stream that was created again fails alone where it is asked for: the query goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from stage import Stage, Taken

from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis


@pytest.fixture
def scripted() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        yield server


def test_a_query_goes_on_that_is_asked_for_a_letter_of_the_stream_before(
    make_stage: Callable[..., Stage], scripted: ScriptedKinesis
) -> None:
    stage = make_stage()
    stage.client, stage.endpoint = scripted.client(), scripted.endpoint_url
    scripted.create_stream(stage.stream)
    taken = Taken()

    def parse(record):  # type: ignore[no-untyped-def]
        text = record.data.decode()
        if text == "bad":
            raise ValueError(text)
        return text, record.attempt

    options = {
        "retryLimit": 0,
        "onExhausted": "deadLetter",
        "deadLetter": stage.at("letters"),
        "failOnDataLoss": "false",
        "describeShardInterval": "200ms",
    }

    def start():  # type: ignore[no-untyped-def]
        return stage.start(stage.parsed(parse, **options), taken)

    _, bad = stage.put(["old", "bad"])
    query = start()
    stage.until(stage.letters, "the letter is written")
    scripted.recreate(stage.stream)
    stage.layouts.clear()
    stage.put(["new"])
    stage.until(lambda: taken.texts == ["new", "old"], "a batch of the new stream")
    asked = ExternalNode(op="replay", records=(bad.rpartition(":")[2],))
    stage.store.external.add(stage.shard(), asked)
    stage.until(lambda: len(stage.letters()) == 2, "it has failed again")
    assert [(one.data, "position invalid" in one.reasons[-1].reason) for one in stage.letters()] == [
        (b"bad", False),
        (b"bad", True),
    ]
    stage.put(["later"])
    stage.until(lambda: "later" in taken.texts, "a further batch")
    query.stop()
    start()
    stage.put(["last"])
    stage.until(lambda: taken.texts == ["last", "later", "new", "old"], "the next life")
