"""Category columns."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from headstart.table.columns.column import Column, Encoded, category, map_distinct, most_frequent, multi_hot

LIMIT = 200  # categories that are kept, the most frequent ones


class CategoryColumn(Column):
    """One category per feature, one-hot encoded. A missing or unknown category gives zeros."""

    arrow: ClassVar[pa.DataType] = pa.string()
    expected: ClassVar[str] = "one category (text, a number or a boolean)"
    type: Literal["category"] = "category"
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """Return the number of categories."""
        return len(self.values)

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the most frequent categories."""
        return cls(name=name, values=most_frequent(column, LIMIT))

    def encode(self, column: pa.Array) -> Encoded:
        """Encode one-hot: (n, categories)."""
        return multi_hot(np.arange(len(column)), column, self.values, len(column))

    def decode(self, numbers: Encoded) -> str | None:
        """Return the category, None if it is missing or unknown."""
        return self.values[int(numbers.argmax())] if len(numbers) and numbers.max() > 0.5 else None

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept texts, numbers and booleans."""
        if pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
            return super().convert(name, column)
        return map_distinct(column, lambda value: value if value is None else cls.accept(name, value))

    @classmethod
    def accept(cls, name: str, value: Any) -> str | None:
        """Accept text, a number or a boolean. An empty text is a missing value."""
        text = category(value)
        if text is None:
            raise cls.refusal(name, value)
        return text or None
