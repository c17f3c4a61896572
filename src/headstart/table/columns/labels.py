"""Label columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.table.columns.column import (
    Column,
    Encoded,
    category,
    is_missing,
    map_distinct,
    most_frequent,
    multi_hot,
)

LIMIT = 500  # labels that are kept, the most frequent ones
SEPARATOR = "|"


class LabelsColumn(Column):
    """Any number of labels per feature, multi-hot encoded.

    A value is a list or a text such as ``"Action|Comedy"``. Unknown labels are ignored.
    """

    arrow: ClassVar[pa.DataType] = pa.list_(pa.string())
    expected: ClassVar[str] = "a list of labels or text such as 'Action|Comedy'"
    type: Literal["labels"] = "labels"
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """Return the number of labels."""
        return len(self.values)

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the most frequent labels."""
        _, labels = _flatten(column)
        return cls(name=name, values=most_frequent(labels, LIMIT))

    def encode(self, column: pa.Array) -> Encoded:
        """Encode multi-hot: (n, labels)."""
        return multi_hot(*_flatten(column), self.values, len(column))

    def decode(self, numbers: Encoded) -> list[str] | None:
        """Return the labels that are known, None if there are none."""
        return [self.values[i] for i in np.flatnonzero(numbers > 0.5)] or None

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept lists of texts or numbers, and texts with the separator."""
        if pa.types.is_string(column.type):
            return pc.split_pattern(column, SEPARATOR)
        if pa.types.is_list(column.type) and not pa.types.is_nested(column.type.value_type):
            ends = np.cumsum(pc.fill_null(column.value_lengths(), 0).to_numpy(), dtype=np.int32)
            labels = map_distinct(pc.list_flatten(column), lambda value: cls._label(name, value))
            return pa.ListArray.from_arrays(
                pa.array(np.append(np.int32(0), ends)), labels, mask=column.is_null()
            )
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> list[str | None]:
        """Accept a list, tuple, set or array, or a text with the separator."""
        if isinstance(value, str):
            return list(value.split(SEPARATOR))
        if isinstance(value, (Collection, np.ndarray)) and not isinstance(value, (dict, bytes)):
            return [cls._label(name, label) for label in value]
        raise cls.refusal(name, value)

    @classmethod
    def _label(cls, name: str, value: object) -> str | None:
        label = category(value)
        if label is None and not is_missing(value):
            raise cls.refusal(name, value)
        return label


def _flatten(column: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the line of each label, and the labels, without blank labels: (labels,) each."""
    labels = pc.utf8_trim_whitespace(pc.list_flatten(column))
    not_blank = pc.fill_null(pc.not_equal(labels, ""), False)
    lines = pc.list_parent_indices(column).filter(not_blank).to_numpy()
    return lines.astype(np.int64), labels.filter(not_blank)
