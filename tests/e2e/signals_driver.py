"""A job that reads until a signal ends it: as its author wrote it, or with the helper of the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from job_session import job_session

from kinesis_trident import await_termination, reliable


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    spark = job_session("local[2]", Path(asked["folder"]), {})
    stream = spark.readStream.format("kinesis-trident").options(**asked["options"]).load()
    query = (
        reliable(stream)
        .map(lambda record: (record.data.decode(),), "text string")
        .for_each_batch(lambda rows, txid: rows.count())
        .start(checkpointLocation=f"{asked['folder']}/checkpoint")
    )
    if asked["helper"]:
        await_termination(query)
        print("the end")
    else:
        query.awaitTermination()


if __name__ == "__main__":
    main()
