"""Columns that a function of the user's encodes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from headstart.errors import InputError
from headstart.progress import Reporter
from headstart.table.columns.column import Column, Encoded
from headstart.table.encoders import EncoderLike
from headstart.table.encoders.sentence import BATCH


class CustomColumn(Column):
    """Values of any type, encoded as ``size`` numbers by a function of the user's, divided by one scale.

    The function maps a list of at most 256 values to an array (n, size). It is not a part of the column
    and is never saved: ``Headstart.load`` takes it again. A missing value gives zeros.
    """

    arrow: ClassVar[pa.DataType] = pa.null()
    expected: ClassVar[str] = "a value that its encoder takes"
    type: Literal["custom"] = "custom"
    size: int
    scale: float

    @property
    def width(self) -> int:
        """Return the length of the vectors."""
        return self.size

    @property
    def takes(self) -> Literal["function"]:
        """Return "function"."""
        return "function"

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Refuse: there is nothing to fit without the function."""
        raise _no_function(name)

    @classmethod
    def fit_encoded(
        cls, name: str, column: pa.Array, argument: str, encoder: EncoderLike | None, reporter: Reporter
    ) -> tuple[Self, Encoded | None]:
        """Encode the column; find the length of the vectors, and the root mean square as the scale."""
        if argument:
            return super().fit_encoded(name, column, argument, None, reporter)
        values, valid = column.drop_null().to_pylist(), column.is_valid().to_numpy(zero_copy_only=False)
        if not values:
            return cls(name=name, size=0, scale=1.0), np.zeros((len(column), 0), np.float32)
        vectors = _encoded(name, values, encoder, reporter)
        scale = float(np.sqrt(np.mean(np.square(vectors, dtype=np.float64)))) if vectors.size else 0.0
        fitted = cls(name=name, size=vectors.shape[1], scale=scale or 1.0)
        result = np.zeros((len(column), fitted.size), np.float32)
        result[valid] = vectors / fitted.scale
        return fitted, result

    def encode(self, column: pa.Array) -> Encoded:
        """Encode a column without values; others need the function."""
        return self.encode_using(column, None, Reporter(quiet=True))

    def encode_using(self, column: pa.Array, encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode the column of a table: (n, size)."""
        return self.encode_values(column.to_pylist(), encoder, reporter)

    def encode_values(self, values: list[Any], encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode values, None if missing: (n, size)."""
        result = np.zeros((len(values), self.size), np.float32)
        present = [i for i, value in enumerate(values) if value is not None]
        if not present:
            return result
        vectors = _encoded(self.name, [values[i] for i in present], encoder, reporter)
        if vectors.shape[1] != self.size:
            raise InputError(
                f"metadata {self.name!r}: the encoder gave vectors of {vectors.shape[1]} numbers; those of"
                f" the fitted column have {self.size}. Pass the same function as before"
            )
        result[present] = vectors / self.scale
        return result

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG003
        """Accept anything."""
        return column

    @classmethod
    def accept(cls, name: str, value: Any) -> Any:  # noqa: ARG003
        """Accept anything."""
        return value


def _encoded(name: str, values: list[Any], encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
    """Call the function in batches and check what it returns: (n, width)."""
    if not callable(encoder):
        raise _no_function(name)
    parts: list[Encoded] = []
    with reporter.bar(f"encoding {name}", len(values)) as bar:
        for start in range(0, len(values), BATCH):
            batch = values[start : start + BATCH]
            try:
                given = encoder(batch)
                part = np.asarray(given, dtype=np.float32)
            except Exception as error:  # whatever the user's function raises
                raise InputError(
                    f"metadata {name!r}: its encoder failed: {type(error).__name__}: {error}"
                ) from error
            shaped = (
                part.ndim == 2
                and len(part) == len(batch)
                and part.shape[1:] == (parts or [part])[0].shape[1:]
            )
            if not shaped or not np.isfinite(part).all():
                raise InputError(
                    f"metadata {name!r}: its encoder must return an array ({len(batch)}, width) of finite"
                    f" numbers for {len(batch)} values, of one width; got the shape {part.shape}"
                )
            parts.append(part)
            bar.step(advance=len(batch))
    return np.concatenate(parts)


def _no_function(name: str) -> InputError:
    return InputError(
        f"metadata {name!r} is encoded by a function of the user's, which is not saved with a model: pass it"
        f" as encoders={{{name!r}: function}} to Table.read, Headstart.load or set_encoders"
    )
