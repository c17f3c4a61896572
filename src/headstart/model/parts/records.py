"""Metadata as it was given: values as Arrow arrays, records as the bytes of an Arrow table."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headstart.errors import InputError
from headstart.table.columns.column import is_missing
from headstart.table.columns.labels import SEPARATOR


def as_array(values: list[object]) -> pa.Array:
    """A column of values as they were given; what Arrow does not know becomes text."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([as_text(value) for value in values], pa.string())


def as_text(value: object) -> str | None:
    """A value as text; labels may be given as a list here and as one text there."""
    if isinstance(value, (list, tuple, set)):
        return SEPARATOR.join(map(str, value))
    return None if is_missing(value) else str(value)


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
