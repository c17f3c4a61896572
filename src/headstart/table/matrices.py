"""Read numpy arrays and SciPy's sparse matrices, whose rows and columns have numbers in place of names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.missing_values import NO_CODES
from headstart.table.names import as_name
from headstart.table.sources import BATCH, FrameSource, Source


def is_matrix(data: object) -> bool:
    """Return whether ``data`` is a numpy array or a sparse matrix of SciPy.

    >>> is_matrix(np.zeros((2, 2))), is_matrix([[0, 0]])
    (True, False)
    """
    if isinstance(data, np.ndarray):
        return True
    sparse = sys.modules.get("scipy.sparse")  # without it there is no such matrix
    return sparse is not None and bool(sparse.issparse(data))


def matrix_source(
    data: Any, row_names: Sequence[object] | None = None, feature_names: Sequence[object] | None = None
) -> Source:
    """Open an array or a sparse matrix of shape (rows, features); the first column has the names of rows.

    Parameters
    ----------
    data : ndarray or sparse matrix
        NaN in an array, and an entry that a sparse matrix does not store, are not observed. A zero that a
        sparse matrix stores is observed.
    row_names, feature_names : sequence of names, optional
        By default 0, 1, 2 and so on.
    """
    label = "the array" if isinstance(data, np.ndarray) else "the sparse matrix"
    if data.ndim != 2:
        raise InputError(f"{label} must have two dimensions, rows and features; got {data.ndim}")
    rows = _names(row_names, data.shape[0], "row", label)
    features = _names(feature_names, data.shape[1], "feature", label)
    if not isinstance(data, np.ndarray):
        return SparseSource(data, rows, features)
    numbers = _as_floats(data, label)
    used_names = set(features)
    row = next(
        name for name in ("row", *(f"row {i}" for i in range(len(used_names)))) if name not in used_names
    )
    columns = {row: pa.array(rows)}
    columns |= {
        name: pa.array(column, from_pandas=True) for name, column in zip(features, numbers.T, strict=True)
    }
    return FrameSource(pa.table(columns), (), NO_CODES, label)


def _names(names: Sequence[object] | None, count: int, noun: str, label: str) -> list[str]:
    """Return the names of ``count`` rows or features, by default their numbers."""
    if names is None:
        return [str(number) for number in range(count)]
    result = [as_name(name, noun) for name in names]
    if len(result) != count:
        raise InputError(f"{label} has {count} {noun}s, but {noun}_names has {len(result)} names")
    if len(set(result)) < count:
        repeated = next(name for name in result if result.count(name) > 1)
        raise InputError(f"{noun}_names has {repeated!r} twice; each {noun} needs a name of its own")
    return result


def _as_floats(data: NDArray[Any], label: str) -> NDArray[np.float64]:
    """Return numbers or booleans as float64; None in an array of objects is missing."""
    if data.dtype.kind not in "biufO":
        raise InputError(f"{label} must contain numbers; got {data.dtype}; give labels in a frame")
    try:
        return np.asarray(data, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{label} must contain numbers, with NaN where nothing is observed: {error}; give labels in a "
            "frame"
        ) from None


class SparseSource(Source):
    """The stored entries of a sparse matrix, in the long form."""

    label = "the sparse matrix"

    def __init__(self, data: Any, rows: list[str], features: list[str]) -> None:
        self._entries = data.tocoo()
        self._values = _as_floats(self._entries.data, self.label)
        self._names = (pa.array(rows, pa.string()), pa.array(features, pa.string()))
        self._name_columns(["row", "feature", "value"])

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the entries in slices, the names as dictionary arrays of all rows and all features."""
        for start in range(0, max(1, len(self._values)), BATCH):
            yield self._batch(slice(start, start + BATCH)).select([*names, *numbers])

    def read(self, name: str) -> pa.Table:  # noqa: ARG002 (the names are text)
        """Return all entries."""
        return pa.Table.from_batches([self._batch(slice(None))])

    def _batch(self, part: slice) -> pa.RecordBatch:
        indices = (self._entries.row[part], self._entries.col[part])
        columns = [
            pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), dictionary)
            for index, dictionary in zip(indices, self._names, strict=True)
        ]
        values = self.missing.to_null(pa.array(self._values[part]))
        return pa.record_batch([*columns, values], names=list(self.columns))
