"""Ignored columns."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from headstart.table.columns.column import Column, Encoded


class IgnoredColumn(Column):
    """A column that is not used. It may contain anything."""

    arrow: ClassVar[pa.DataType] = pa.null()
    expected: ClassVar[str] = "anything"
    type: Literal["ignore"] = "ignore"

    @property
    def width(self) -> int:
        """Return 0."""
        return 0

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Return the column; there is nothing to learn."""
        return cls(name=name)

    def encode(self, column: pa.Array) -> Encoded:
        """Return an array without columns: (n, 0)."""
        return np.zeros((len(column), 0), np.float32)

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG003
        """Replace all values by nulls."""
        return pa.nulls(len(column))

    @classmethod
    def accept(cls, name: str, value: Any) -> None:
        """Replace the value by None."""
