"""Tuples between the operators of a batch: a DataFrame, or operators on one that need no DataFrame between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kinesis_trident.bolt.steps.time_zones import zone_of
from kinesis_trident.bolt.tracking.coverage import OPEN
from kinesis_trident.bolt.tracking.fusion import Fused, Operator, Promptly, Select


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that run one after the other in one worker, on the rows of a frame; `schema` is that of the last."""

    base: DataFrame
    operators: tuple[Operator, ...] = ()
    schema: StructType | None = None

    def then(self, operator: Operator, schema: StructType) -> Chain:
        """Return the chain with a further operator."""
        return replace(self, operators=(*self.operators, operator), schema=schema)

    def frame(self) -> DataFrame:
        """Return the output of the last operator."""
        if self.schema is None:
            return self.base
        alone = len(self.operators) == 1
        operator = self.operators[0] if alone else Fused(self.operators)
        return self.base.mapInArrow(Promptly(operator, zone_of(self.base)), self.schema)


class Tracked:
    """Tuples: a DataFrame with `__anchors`, and the operators whose entire output it is.

    Args:
        frame: the DataFrame; None where it is that of `chain`, which is made when it is first asked for: in a small
            batch most time goes into making frames.
        producers: the names of the operators.
        chain: the origin of the frame, if it is operators on another frame.
    """

    __slots__ = ("_chain", "_frame", "producers")

    def __init__(
        self, frame: DataFrame | None, producers: tuple[str, ...], chain: Chain | None = None
    ) -> None:
        self._frame = frame
        self.producers = producers
        self._chain = chain

    @property
    def frame(self) -> DataFrame:
        """The DataFrame."""
        if self._frame is None:
            assert self._chain is not None
            self._frame = self._chain.frame()
        return self._frame

    def on(self, frame: DataFrame) -> Tracked:
        """Return the same tuples in another frame: moved, with other columns, cached; none lost, none duplicated."""
        return Tracked(frame, self.producers)

    def select(self, names: Sequence[str]) -> Tracked:
        """Return the same tuples with these columns."""
        if self._chain is None or self._chain.schema is None:
            return self.on(self.frame.select(*names))
        schema = StructType([self._chain.schema[name] for name in names])
        return Tracked(None, self.producers, self._chain.then(Select(tuple(names)), schema))

    def through(
        self, operator: Operator, schema: StructType, producers: tuple[str, ...], *, passes: bool = False
    ) -> Tracked:
        """Return an operator's output for the tuples, with this schema.

        If they have not been moved since another operator made them, both run in one worker. `passes`: the operator
        passes all columns on as they are.
        """
        chain = (self._chain or Chain(self.frame)).then(operator, schema)
        # Spark returns times in the zone of its session.
        alone = not passes and "timestamp" in schema.simpleString()
        return Tracked(chain.frame(), producers) if alone else Tracked(None, producers, chain)

    def changed(self, frame: DataFrame) -> Tracked:
        """Return tuples that the user's code made of these: some dropped, some duplicated. These are acked here."""
        return Tracked(frame, (OPEN,))

    def union(self, other: Tracked) -> Tracked:
        """Return the tuples of both; columns that only one has are null in the other's."""
        both = self.frame.unionByName(other.frame, allowMissingColumns=True)
        return Tracked(both, (*self.producers, *other.producers))
