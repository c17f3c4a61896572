"""Number and date columns."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.table.columns.column import Column, Encoded


class ScaledColumn(Column):
    """A number, scaled to [0, 1] by the smallest and largest value of the fitted column.

    Values outside this range are bounded smoothly: they approach -1 and 2. A missing value is replaced by
    the mean. If the fitted column has missing values, a second number is 1 for a missing value and 0
    otherwise. Without them, a model could not learn the weight of this second number.
    """

    low: float
    high: float
    mean: float
    missing: bool

    @property
    def width(self) -> int:
        """Return 2 if there is a number for missing values, else 1."""
        return 1 + self.missing

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Compute the smallest and largest value and the mean."""
        values = cls._floats(column.drop_null())
        low, high, mean = (values.min(), values.max(), values.mean()) if len(values) else (0.0, 1.0, 0.0)
        return cls(name=name, low=low, high=high, mean=mean, missing=column.null_count > 0)

    def encode(self, column: pa.Array) -> Encoded:
        """Scale the values: (n, 1 or 2)."""
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        values = np.full(len(column), self.mean)
        values[valid] = self._floats(column.drop_null())
        scaled = (values - self.low) / ((self.high - self.low) or 1.0)
        inside = np.clip(scaled, 0.0, 1.0)
        scaled = inside + np.tanh(scaled - inside)
        return np.stack([scaled, ~valid][: self.width], axis=1).astype(np.float32)

    def decode(self, numbers: Encoded) -> object | None:
        """Return the value as exactly as single precision tells; None if it is missing.

        A missing value of a column that has all of them looks like the mean.
        """
        if self.missing and numbers[1] > 0.5:
            return None
        scaled = float(numbers[0])
        inside = min(max(scaled, 0.0), 1.0)
        beyond = max(-0.999999, min(0.999999, scaled - inside))
        span = (self.high - self.low) or 1.0
        value = self.low + span * (inside + math.atanh(beyond))
        return self._value(value, 1e-6 * max(span, abs(value) * 1e-6))

    def _value(self, number: float, resolution: float) -> object:
        """Return the number as a value of the column, without digits below the resolution."""
        short = round(number, max(0, -math.floor(math.log10(resolution)) - 1))
        return int(short) if short.is_integer() else short

    @classmethod
    def _floats(cls, values: pa.Array) -> NDArray[np.float64]:
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


class NumberColumn(ScaledColumn):
    """A finite number."""

    arrow: ClassVar[pa.DataType] = pa.float64()
    expected: ClassVar[str] = "a finite number"
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
        """Accept a finite number; a boolean is not a number."""
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            try:
                if math.isfinite(value):
                    return float(value)
            except OverflowError:
                pass
        raise cls.refusal(name, value)


class DateColumn(ScaledColumn):
    """A date or a date with time, as a number of days."""

    arrow: ClassVar[pa.DataType] = pa.timestamp("us")
    expected: ClassVar[str] = "a date such as '2026-11-15'"
    type: Literal["date"] = "date"

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept columns of dates, and of texts in ISO format."""
        if pa.types.is_string(column.type):
            dates = [value and cls.accept(name, value) for value in column.to_pylist()]
            return pa.array(dates, cls.arrow)
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> datetime:
        """Accept a date or datetime, also of numpy or pandas, or text in ISO format."""
        date = value.astype("datetime64[us]").item() if isinstance(value, np.datetime64) else value
        try:
            time = datetime.fromisoformat(date if isinstance(date, str) else date.isoformat())
            return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
        except (AttributeError, ValueError, OverflowError):  # OverflowError: near the years 1 and 9999
            raise cls.refusal(name, value) from None

    def _value(self, number: float, resolution: float) -> datetime:
        day = timedelta(days=round(number) if resolution > 1e-5 else number)
        return datetime(1970, 1, 1) + day

    @classmethod
    def _floats(cls, values: pa.Array) -> NDArray[np.float64]:
        return values.cast(pa.int64()).to_numpy(zero_copy_only=False) / 86_400e6  # type: ignore[no-any-return]
