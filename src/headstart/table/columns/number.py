"""Numbers and dates."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.table.columns.column import Column, Encoded


class ScaledColumn(Column):
    """What lies on a line, scaled to [0, 1] by the ends seen; beyond them it bends towards -1 and 2.

    A missing value counts as the mean; a second number says so if any was missing when fitted
    (else its weight would never have been trained).
    """

    low: float
    high: float
    mean: float
    missing: bool

    @property
    def width(self) -> int:
        """The number, and perhaps whether it is missing."""
        return 1 + self.missing

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Note the ends and the mean."""
        known = cls._floats(column.drop_null())
        low, high, mean = (known.min(), known.max(), known.mean()) if len(known) else (0.0, 1.0, 0.0)
        return cls(name=name, low=low, high=high, mean=mean, missing=column.null_count > 0)

    def encode(self, column: pa.Array) -> Encoded:
        """Scale: (n, 1 or 2)."""
        known = column.is_valid().to_numpy(zero_copy_only=False)
        values = np.full(len(column), self.mean)
        values[known] = self._floats(column.drop_null())
        scaled = (values - self.low) / ((self.high - self.low) or 1.0)
        inside = np.clip(scaled, 0.0, 1.0)
        scaled = inside + np.tanh(scaled - inside)
        return np.stack([scaled, ~known][: self.width], axis=1).astype(np.float32)

    @classmethod
    def _floats(cls, known: pa.Array) -> NDArray[np.float64]:
        return known.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


class NumberColumn(ScaledColumn):
    """A finite number."""

    arrow: ClassVar[pa.DataType] = pa.float64()
    wanted: ClassVar[str] = "a finite number"
    type: Literal["number"] = "number"

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept columns of numbers only."""
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
            finite = pc.is_finite(column)
            if not pc.all(finite, min_count=0).as_py():
                raise cls.refusal(name, column.filter(pc.invert(finite))[0].as_py())
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> float:
        """Accept a finite number; a truth value is none."""
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            try:
                if math.isfinite(value):
                    return float(value)
            except OverflowError:
                pass
        raise cls.refusal(name, value)


class DateColumn(ScaledColumn):
    """A day or a moment, taken as a number of days."""

    arrow: ClassVar[pa.DataType] = pa.timestamp("us")
    wanted: ClassVar[str] = "a date such as '2026-11-15'"
    type: Literal["date"] = "date"

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept columns of dates, and of texts that are dates."""
        if pa.types.is_string(column.type):
            dates = [value and cls.accept(name, value) for value in column.to_pylist()]
            return pa.array(dates, cls.arrow)
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> datetime:
        """Accept a date, a moment (also numpy's), or either as ISO text."""
        given = value.astype("datetime64[us]").item() if isinstance(value, np.datetime64) else value
        try:
            moment = datetime.fromisoformat(given if isinstance(given, str) else given.isoformat())
            return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
        except (AttributeError, ValueError, OverflowError):  # the last at the ends of the calendar
            raise cls.refusal(name, value) from None

    @classmethod
    def _floats(cls, known: pa.Array) -> NDArray[np.float64]:
        return known.cast(pa.int64()).to_numpy(zero_copy_only=False) / 86_400e6  # type: ignore[no-any-return]
