"""Text columns."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.table.columns.column import Column, Encoded


class TextColumn(Column):
    """Text: words and pairs of words, hashed into a vector of ``size`` numbers with unit length."""

    arrow: ClassVar[pa.DataType] = pa.string()
    expected: ClassVar[str] = "text"
    type: Literal["text"] = "text"
    size: int = Field(default=64, gt=0)

    @property
    def width(self) -> int:
        """Return the number of hash buckets."""
        return self.size

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Return the column with default settings; hashing learns nothing."""
        return cls(name=name)

    def encode(self, column: pa.Array) -> Encoded:
        """Hash the texts: (n, size). A missing or empty text gives zeros."""
        if not len(column):
            return np.zeros((0, self.size), np.float32)
        from sklearn.feature_extraction.text import HashingVectorizer  # slow to import, rarely needed

        vectorizer = HashingVectorizer(
            n_features=self.size, ngram_range=(1, 2), token_pattern=r"\b\w+\b", norm="l2", dtype=np.float32
        )
        hashed: Encoded = vectorizer.transform(pc.fill_null(column, "").to_pylist()).toarray()
        return hashed

    @classmethod
    def accept(cls, name: str, value: Any) -> str:
        """Accept text only."""
        if not isinstance(value, str):
            raise cls.refusal(name, value)
        return value
