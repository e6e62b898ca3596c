"""Import each public name, and print them as JSON: a list of names for each public module.

A name whose extra is not installed says which one it needs.
"""

from __future__ import annotations

import json
from importlib import import_module

PUBLIC = (
    "kinesis_trident",
    "kinesis_trident.errors",
    "kinesis_trident.decoders",
    "kinesis_trident.testing",
    "kinesis_trident.trident",
    "kinesis_trident.trident.maps",
)

found = {name: sorted(import_module(name).__all__) for name in PUBLIC}
for module, names in found.items():
    for name in names:
        try:
            getattr(import_module(module), name)
        except ImportError as error:
            if "kinesis-trident[" not in str(error):
                raise
print(json.dumps(found))
