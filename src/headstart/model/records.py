"""Metadata as it was given, in a saved model: the bytes of an Arrow table."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headstart.errors import InputError
from headstart.model.exporting import as_array
from headstart.model.fitted import Fitted


def record_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """The metadata of all features, if it was kept; none if there is no metadata."""
    records = [feature.record for feature in fitted.catalogue.values()]
    if fitted.schema is None or any(record is None for record in records):
        return {}
    columns = [column.name for column in fitted.schema.columns]
    return {"records": as_bytes([record or {} for record in records], columns)}


def as_bytes(records: Sequence[Mapping[str, object]], columns: Sequence[str]) -> Tensor:
    """Records as one tensor of bytes."""
    table = pa.table({name: as_array([record.get(name) for record in records]) for name in columns})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return torch.from_numpy(np.frombuffer(sink.getvalue(), dtype=np.uint8).copy())


def records_from(content: Tensor | None, count: int) -> list[dict[str, object] | None]:
    """The records in these bytes, one per feature; None for each if there are no bytes."""
    if content is None:
        return [None] * count
    try:
        with pa.ipc.open_stream(pa.py_buffer(content.numpy().tobytes())) as reader:
            table = reader.read_all()
        table.validate(full=True)
        lines = table.to_pylist() if table.num_columns else [{}] * count
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise InputError(f"its metadata cannot be read: {error}") from None
    if len(lines) != count:
        raise InputError("its metadata does not agree with its features")
    return [{key: value for key, value in line.items() if value is not None} for line in lines]
