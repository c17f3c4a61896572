"""Make Arrow columns of texts and numbers without ``pa.array``.

Where pandas is installed, ``pa.array`` imports it, which takes longer than most answers of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def number_column(numbers: NDArray[Any]) -> pa.Array:
    """Return numbers (n,) as a column that shares their memory."""
    contiguous = np.ascontiguousarray(numbers)
    buffers = [None, pa.py_buffer(contiguous)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(contiguous.dtype), len(contiguous), buffers)


def text_column(texts: Sequence[str | None]) -> pa.StringArray:
    """Return texts as a column; None is a missing one.

    >>> text_column(["Alien", None, ""]).to_pylist()
    ['Alien', None, '']
    """
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    known = np.packbits(np.array([text is not None for text in texts], bool), bitorder="little")
    buffers = [pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)), pa.py_buffer(known)]
    return pa.StringArray.from_buffers(len(encoded), *buffers)


def dictionary_column(names: Sequence[str], which: NDArray[np.integer]) -> pa.DictionaryArray:
    """Return the names at positions ``which`` as a dictionary-encoded column.

    The dictionary has no repeated names, because they would leave random bytes in Parquet files.

    >>> dictionary_column(["a", "b", "a"], np.array([2, 1])).to_pylist()
    ['a', 'b']
    """
    unique: dict[str, int] = {}
    positions = np.array([unique.setdefault(name, len(unique)) for name in names], dtype=np.int32)
    return pa.DictionaryArray.from_arrays(number_column(positions[which]), text_column(list(unique)))
