"""Vector columns, such as sentence embeddings."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headstart.errors import InputError
from headstart.table.columns.column import Column, Encoded

_MAX_SIZE = 1e6  # of an encoded number, whose usual size is 1


class VectorColumn(Column):
    """A list of ``size`` numbers, such as a sentence embedding, divided by one common scale."""

    arrow: ClassVar[pa.DataType] = pa.list_(pa.float64())
    expected: ClassVar[str] = "a list of finite numbers"
    type: Literal["vector"] = "vector"
    size: int
    scale: float

    @property
    def width(self) -> int:
        """Return the length of the vectors."""
        return self.size

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the length, and the root mean square of the numbers as the scale."""
        lengths = pc.unique(column.value_lengths().drop_null()).to_pylist()
        if len(lengths) > 1:
            raise InputError(
                f"metadata {name!r}: all vectors must have the same length; got lengths {sorted(lengths)[:5]}"
            )
        values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
        largest = float(np.abs(values).max(initial=0.0)) or 1.0  # so that no square is too large or small
        scale = largest * float(np.sqrt(np.mean((values / largest) ** 2))) if len(values) else 1.0
        return cls(name=name, size=lengths[0] if lengths else 0, scale=scale or 1.0)

    def encode(self, column: pa.Array) -> Encoded:
        """Divide by the scale: (n, size), at most a million of it. A missing vector gives zeros."""
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        wrong = pc.not_equal(column.value_lengths(), self.size)
        if pc.any(wrong, min_count=0).as_py():
            length = column.value_lengths().filter(wrong)[0].as_py()
            raise InputError(f"metadata {self.name!r} must be a list of {self.size} numbers; got {length}")
        result = np.zeros((len(column), self.size), np.float32)
        values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            scaled = np.clip(values / self.scale, -_MAX_SIZE, _MAX_SIZE)
        result[valid] = scaled.reshape(int(valid.sum()), self.size)
        return result

    def decode(self, numbers: Encoded) -> list[float] | None:
        """Return the vector, in single precision; None if it is missing."""
        return (numbers * self.scale).tolist() if numbers.any() else None

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept lists of finite numbers."""
        column = super().convert(name, column)
        values = pc.list_flatten(column)
        if values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py():
            bad = values.filter(pc.invert(pc.fill_null(pc.is_finite(values), False)))
            raise cls.refusal(name, bad[0].as_py())
        return column

    @classmethod
    def accept(cls, name: str, value: Any) -> list[float]:
        """Accept a list, tuple or one-dimensional array of finite numbers."""
        try:
            vector = np.asarray(value)
            if (
                vector.ndim == 1
                and (vector.dtype.kind in "iuf" or not len(vector))
                and np.isfinite(vector).all()
            ):
                return vector.astype(np.float64).tolist()  # type: ignore[no-any-return]
        except (TypeError, ValueError):
            pass
        raise cls.refusal(name, value)
