"""What an older Spark cannot give a test: each reason to skip one, once."""

from __future__ import annotations

from importlib.util import find_spec

import pyspark
import pytest
from pyspark.sql.datasource import DataSourceReader

from kinesis_trident.spout.engines import find_protocol

NO_REPORTS = "Spark 4.0 and 4.1 do not ask a source what it reports"

needs_reports = pytest.mark.skipif(find_protocol() == "4.0", reason=NO_REPORTS)
needs_available_now = pytest.mark.skipif(
    find_protocol() == "4.0",
    reason="Spark 4.0 and 4.1 have no Trigger.AvailableNow for a Python source: the program drains and settles",
)
_IS_4_0 = pyspark.__version__.startswith("4.0.")
needs_registration = pytest.mark.skipif(
    _IS_4_0, reason="Spark 4.0 refuses to register a format that it finds by itself"
)
needs_workers_without_daemon = pytest.mark.skipif(
    _IS_4_0, reason="Spark 4.0 starts no Python workers without a daemon once it has started some with one"
)
needs_pipelines = pytest.mark.skipif(
    find_spec("pyspark.pipelines") is None, reason="Spark 4.0 has no declarative pipelines"
)
needs_filters = pytest.mark.skipif(
    not hasattr(DataSourceReader, "pushFilters"), reason="PySpark 4.0 pushes no filters"
)
