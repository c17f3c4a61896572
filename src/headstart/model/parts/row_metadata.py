"""The metadata of a model's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.row_prior import RowBelief, RowPrior
from headstart.model.parts.records import as_array
from headstart.table import MetadataSchema


@dataclass(frozen=True)
class RowMetadata:
    """The metadata of all rows of a model, in their order. It never changes: a change gives another one."""

    schema: MetadataSchema
    encoded: NDArray[np.float32]  # (rows, width)
    lines: pa.Table  # as it was given, one line per row
    prior: RowPrior | None  # what it says of rows; None if it was found to say nothing

    def belief(self, encoded: NDArray[np.float32]) -> RowBelief | None:
        """What is believed of rows of this metadata."""
        return None if self.prior is None else self.prior.belief(torch.from_numpy(encoded))

    def added(self, records: Sequence[Mapping[str, object]], encoded: NDArray[np.float32]) -> RowMetadata:
        """Return the metadata with that of further rows."""
        columns = [column.name for column in self.schema.columns]
        every = [*self.lines.to_pylist(), *records]
        lines = pa.table({name: as_array([record.get(name) for record in every]) for name in columns})
        return replace(self, encoded=np.concatenate([self.encoded, encoded]), lines=lines)

    def without(self, row: int) -> RowMetadata:
        """Return the metadata without that of a row."""
        kept = np.delete(np.arange(len(self.encoded)), row)
        return replace(self, encoded=self.encoded[kept], lines=self.lines.take(pa.array(kept)))
