"""Columns that are left out."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from headstart.table.columns.column import Column, Encoded


class IgnoredColumn(Column):
    """A column that may hold anything and says nothing."""

    arrow: ClassVar[pa.DataType] = pa.null()
    wanted: ClassVar[str] = "anything"
    type: Literal["ignore"] = "ignore"

    @property
    def width(self) -> int:
        """None."""
        return 0

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Learn nothing."""
        return cls(name=name)

    def encode(self, column: pa.Array) -> Encoded:
        """Give no numbers: (n, 0)."""
        return np.zeros((len(column), 0), np.float32)

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG003
        """Forget what is there."""
        return pa.nulls(len(column))

    @classmethod
    def accept(cls, name: str, value: Any) -> None:
        """Forget what is there."""
