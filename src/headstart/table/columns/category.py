"""Categories."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from headstart.table.columns.column import Column, Encoded, category, hot, mapped, most_frequent

LIMIT = 200


class CategoryColumn(Column):
    """One value out of several, one-hot; a missing or never seen one is all zeros."""

    arrow: ClassVar[pa.DataType] = pa.string()
    wanted: ClassVar[str] = "one category (text, a number or a truth value)"
    type: Literal["category"] = "category"
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """One a category."""
        return len(self.values)

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Note the most frequent categories."""
        return cls(name=name, values=most_frequent(column, LIMIT))

    def encode(self, column: pa.Array) -> Encoded:
        """One-hot: (n, categories)."""
        return hot(np.arange(len(column)), column, self.values, len(column))

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept texts, numbers and truth values."""
        if pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
            return super().convert(name, column)
        return mapped(column, lambda value: value if value is None else cls.accept(name, value))

    @classmethod
    def accept(cls, name: str, value: Any) -> str | None:
        """Accept text, a number or a truth value; empty text is none."""
        text = category(value)
        if text is None:
            raise cls.refusal(name, value)
        return text or None
