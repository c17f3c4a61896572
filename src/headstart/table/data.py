"""What a table consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.compact import Floats, Positions, ascends, counts_of, exact, require_positions
from headstart.table.encoders import EncoderLike
from headstart.table.kinds import Kinds
from headstart.table.metadata import MetadataSchema
from headstart.table.names import Names


@dataclass(frozen=True, eq=False, repr=False)
class TableData:
    """The parts of a ``Table``, which describes them, and what follows from them directly."""

    rows: Names
    features: Names
    kinds: Kinds
    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    metadata: pa.Table | None = None
    schema: MetadataSchema | None = None
    notes: tuple[str, ...] = ()
    encoders: Mapping[str, EncoderLike] = field(default_factory=dict)
    row_metadata: pa.Table | None = None
    row_schema: MetadataSchema | None = None
    times: NDArray[np.float64] | None = None  # (n,)
    weights: NDArray[np.float64] | None = None  # (n,)

    def __post_init__(self) -> None:
        if any(part is not None and len(part) != len(self.values) for part in (self.times, self.weights)):
            raise InputError("a table has one time and one weight for each observation")
        require_positions(len(self.rows), "rows")
        require_positions(len(self.features), "features")
        for name in ("row_index", "feature_index", "values"):
            given = getattr(self, name)
            array = (exact(given) if name == "values" else np.asarray(given, dtype=np.int32)).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if not ascends(self.row_index, self.feature_index):
            raise InputError("a table's observations must be sorted by (row, feature), each pair once")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the number of features."""
        return len(self.rows), len(self.features)

    @property
    def density(self) -> float:
        """The fraction of all (row, feature) pairs that are observed."""
        return len(self) / max(len(self.rows) * len(self.features), 1)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of observations of each feature: (features,)."""
        return counts_of(self.feature_index, len(self.features))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableData):
            return NotImplemented
        return (
            self.rows == other.rows
            and self.features == other.features
            and self.kinds == other.kinds
            and np.array_equal(self.row_index, other.row_index)
            and np.array_equal(self.feature_index, other.feature_index)
            and np.array_equal(self.values, other.values)
            and _same(self.times, other.times)
            and _same(self.weights, other.weights)
            and self.schema == other.schema
            and (self.metadata is None) == (other.metadata is None)
            and (self.metadata is None or self.metadata.equals(other.metadata))
            and self.row_schema == other.row_schema
            and (self.row_metadata is None) == (other.row_metadata is None)
            and (self.row_metadata is None or self.row_metadata.equals(other.row_metadata))
        )

    def __hash__(self) -> int:
        return hash((self.shape, len(self)))


def _same(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)
