"""`python -m kinesis_trident`: the command line, where `kinesis-trident` is not on the path."""

from __future__ import annotations

from kinesis_trident.console.cli import main

if __name__ == "__main__":
    main()
