"""Takes away what WITHOUT names: Python runs this at the start of each process of `benchmarks.savings`.

A module that stands in for another one is there before any import of it.
"""

import os
import sys
from types import ModuleType


def _stand_in(name: str, **names: object) -> None:
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module


match os.environ.get("WITHOUT"):
    case "prompt_sockets":
        _stand_in(
            "kinesis_trident.common.prompt_sockets",
            acknowledge_at_once=lambda: None,
            PromptLines=lambda _connection, lines: lines,
        )
    case "worker_garbage":
        _stand_in("kinesis_trident.common.worker_garbage", exempt_from_collections=lambda _user: None)
    case "running_scan":
        _stand_in(
            "kinesis_trident.bolt.tracking.running_scan", reading_chain=None, running_scan=lambda _rows: None
        )
