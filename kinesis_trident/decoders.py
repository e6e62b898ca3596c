"""Decoders of what AWS's services and other producers write, for `reliable(...).map`; `GlueDecoder` is beside them.

A name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.decoders.decoders import (
        CloudWatchLogsDecoder as CloudWatchLogsDecoder,
        DmsDecoder as DmsDecoder,
        DynamoDBDecoder as DynamoDBDecoder,
        JsonDecoder as JsonDecoder,
    )
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
