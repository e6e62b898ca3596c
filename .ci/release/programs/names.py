"""Import each name of the public modules given, and print them as JSON: a list of names for each.

A name whose extra is not installed says which one it needs.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

found = {name: sorted(import_module(name).__all__) for name in sys.argv[1:]}
for module, names in found.items():
    for name in names:
        try:
            getattr(import_module(module), name)
        except ImportError as error:
            if "kinesis-trident[" not in str(error):
                raise
print(json.dumps(found))
