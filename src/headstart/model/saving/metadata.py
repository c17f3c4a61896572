"""The metadata of features and rows in a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import torch
from torch import Tensor

from headstart.core.row_prior import RowPrior
from headstart.errors import InputError
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.records import as_array, as_bytes, records_from
from headstart.model.parts.row_metadata import RowMetadata

if TYPE_CHECKING:
    from headstart.model.saving.format import ModelFacts


def record_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """The metadata of all features, if it was kept; none if there is no metadata."""
    records = [feature.record for feature in fitted.catalogue.values()]
    if fitted.schema is None or any(record is None for record in records):
        return {}
    columns = [column.name for column in fitted.schema.columns]
    return {"records": as_bytes([record or {} for record in records], columns)}


def row_metadata_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """The metadata of rows and what it says of them, if there is any."""
    held = fitted.row_metadata
    if held is None:
        return {}
    columns = [column.name for column in held.schema.columns]
    tensors = {
        "rows/metadata": torch.from_numpy(held.encoded),
        "rows/records": as_bytes(held.lines.to_pylist(), columns),
    }
    prior = {} if held.prior is None else vars(held.prior)
    return tensors | {f"row_prior/{name}": part for name, part in prior.items()}


def row_metadata_from(
    facts: ModelFacts, parts: dict[str, dict[str, Tensor]], width: int, rows: int
) -> RowMetadata | None:
    """The metadata of the rows of a saved model, which has so many."""
    own, schema = parts.get("rows"), facts.row_metadata
    if own is None or schema is None:
        if own is not None or schema is not None or "row_prior" in parts:
            raise InputError("its metadata of rows is not complete")
        return None
    columns = [column.name for column in schema.columns]
    records = [record or {} for record in records_from(own["records"], rows)]
    lines = pa.table({name: as_array([record.get(name) for record in records]) for name in columns})
    prior = RowPrior(**parts["row_prior"]) if "row_prior" in parts else None
    fits = own["metadata"].shape == (rows, schema.width)
    if prior is not None:
        fits = fits and (
            prior.matrix.shape == (3 * schema.width, width)
            and prior.constant.shape == (width,)
            and prior.covariance.shape == (width, width)
            and prior.bends.shape == (schema.width,)
            and prior.gains.shape == (len(schema.columns),)
        )
    if not fits:
        raise InputError("its metadata of rows does not agree with its rows")
    return RowMetadata(schema, own["metadata"].numpy(), lines, prior)
