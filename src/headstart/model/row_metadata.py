"""The metadata of a model's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.core.row_prior import RowBelief, RowPrior
from headstart.errors import InputError, UnknownNameError
from headstart.model.given import as_array, require_mapping, tidy_keys, unique_names
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


def encoded_rows(
    held: RowMetadata | None, names: Sequence[str], given: Mapping[Any, Any] | None
) -> tuple[list[dict[str, object]], NDArray[np.float32]]:
    """The metadata that is given of new rows, by their names: as it was given, and encoded."""
    if given is not None and held is None:
        raise InputError("the model was fitted without row metadata and can use none")
    said = {} if given is None else require_mapping(given, "metadata of rows", "{'u99': {'age': 31}}")
    tidy = dict(zip(unique_names(said, "metadata of rows", "row"), said.values(), strict=True))
    strange = [name for name in tidy if name not in set(names)]
    if strange:
        raise UnknownNameError(f"metadata is given of row {strange[0]!r}, which is not among the new rows")
    if held is None:
        return [{} for _ in names], np.zeros((len(names), 0), np.float32)
    columns = [column.name for column in held.schema.columns]
    records: list[dict[str, object]] = []
    for name in names:
        record = require_mapping(tidy.get(name) or {}, f"row {name!r}: metadata", "{'age': 31}")
        records.append(tidy_keys(record, columns))
        try:
            if len(record):
                held.schema.encode([records[-1]])
        except InputError as error:
            raise type(error)(f"row {name!r}: {error}") from None
    return records, held.schema.encode(records) if records else held.encoded[:0]
