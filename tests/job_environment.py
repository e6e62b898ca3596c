"""The environment of the processes that tests start: no settings of the developer's, and a Spark that starts fast."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import fast_spark
from pyspark import __version__ as VERSION

__all__ = ["REGION", "ROOT", "WITHOUT_CHMOD", "job_environment"]

ROOT = Path(__file__).resolve().parent.parent
REGION = "us-east-1"
_STREAMING = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if VERSION >= "4.1" else "")
WITHOUT_CHMOD = {
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
}
"""Settings of Spark, which else starts a `chmod` for each file of a checkpoint: a fifth of the processor."""


def job_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with dummy credentials and nothing of the developer's own AWS set-up."""
    kept = {name: value for name, value in given.items() if not name.startswith("AWS_")}
    # Spark's Python workers import the packages of this checkout, installed or not.
    path = [str(ROOT), str(fast_spark.WORKERS), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        **fast_spark.environment(),
    }
