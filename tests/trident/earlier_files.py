"""A state in files as an earlier release has it: a snapshot of all keys, and a file of changes for each batch since."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.binary()), ("expires", pa.float64())])
Values = dict[str, bytes]


def read_folder(folder: Path) -> Values:
    """Read the newest snapshot and what follows it; each file's number is one more than the one before."""
    files = sorted(file for file in folder.iterdir() if file.suffix in (".snapshot", ".batch"))
    newest = [at for at, file in enumerate(files) if file.suffix == ".snapshot"]
    files = files[newest[-1] :] if newest else files
    assert len({file.name[:6] for file in files}) <= 1
    numbers = [int(file.stem[7:]) for file in files]
    assert numbers == [*range(numbers[0], numbers[0] + len(files))] if files else not numbers
    values = Values()
    for file in files:
        table = ipc.open_file(pa.BufferReader(file.read_bytes())).read_all()
        assert table.schema == SCHEMA
        for key, value, _ in zip(*(column.to_pylist() for column in table.columns), strict=True):
            values.pop(key, None)
            if value is not None:
                values[key] = value
    return values


class EarlierWriter:
    """Begins a generation with a snapshot of what it has read, removes what was before, and writes each batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        before, values = [*folder.iterdir()], read_folder(folder)
        self._generation = 1 + max((int(file.name[:6]) for file in before), default=0)
        self._number = 0
        self._write("snapshot", values)
        for file in before:
            file.unlink()

    def write(self, batch: dict[str, bytes | None]) -> None:
        """Write the changes of a batch; None removes a key."""
        self._write("batch", batch)

    def _write(self, kind: str, entries: dict[str, bytes | None] | Values) -> None:
        self._number += 1
        columns = [pa.array(entries, pa.string()), pa.array(entries.values(), pa.binary())]
        table = pa.table([*columns, pa.array([0.0] * len(entries), pa.float64())], schema=SCHEMA)
        with ipc.new_file(
            str(self._folder / f"{self._generation:06d}-{self._number:012d}.{kind}"), SCHEMA
        ) as file:
            file.write_table(table)
