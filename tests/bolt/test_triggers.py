"""Triggers without micro-batches are refused before Spark starts anything."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from kinesis_trident.bolt.errors import OperatorError
from kinesis_trident.bolt.foreach_batch import start_query


@pytest.mark.parametrize("trigger", [{"realTime": "5 minutes"}, {"continuous": "1 second"}])
def test_a_trigger_without_micro_batches_is_refused(trigger: dict[str, Any]) -> None:
    # No frame is asked for anything.
    with pytest.raises(OperatorError, match=r"runs no micro-batches.*Use processingTime or availableNow"):
        start_query(
            cast(DataFrame, None),
            lambda _rows, _batch: None,
            checkpointLocation="",
            queryName=None,
            trigger=trigger,
        )
