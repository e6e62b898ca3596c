"""Run what Spark runs to look for formats, without the JVM that would start it."""

from __future__ import annotations

import io

from pyspark.sql.worker.lookup_data_sources import _main

out = io.BytesIO()
_main(io.BytesIO(), out)
print("kinesis-trident" if b"kinesis-trident" in out.getvalue() else "nothing")
