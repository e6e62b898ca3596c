"""A server of Spark Connect: `connect_server.py <folder> <port>`. It ends with its standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from job_session import job_session

if __name__ == "__main__":
    folder, port = sys.argv[1:]
    plugin = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin"}
    spark = job_session("local[2]", Path(folder), {**plugin, "spark.connect.grpc.binding.port": port})
    print("ready", flush=True)
    sys.stdin.read()
    spark.stop()
