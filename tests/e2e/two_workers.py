"""A standalone cluster of two hosts, in the driver's JVM: `local-cluster` has one, with one address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext

__all__ = ["start_cluster"]


def start_cluster(folder: Path) -> str:
    """Start a master and two workers with an address each, of one core: the master's URL."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    conf = SparkConf()._jconf
    master = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1()
    url = f"spark://127.0.0.1:{master.address().port()}"
    masters = SparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    masters[0] = url
    none = jvm.scala.Option.empty()
    for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
        jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 600, masters, str(folder), jvm.scala.Some(number), conf, none
        )
    return str(url)
