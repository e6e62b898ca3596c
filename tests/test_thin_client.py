"""Spark's thin client, `pyspark-client`, has neither `pyspark.core` nor py4j: all public names are imported without."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "py4j" or name.startswith("pyspark.core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from pyspark.util import is_remote_only
assert is_remote_only()
import kinesis_trident, kinesis_trident.testing
for name in kinesis_trident.__all__:
    getattr(kinesis_trident, name)
print("all")
"""


def test_all_public_names_are_imported_without_the_classic_session() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert ended.stdout == "all\n", ended.stderr
