"""Data frames of any library that narwhals supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import narwhals as nw
import pyarrow as pa
from narwhals.exceptions import NarwhalsError

from headstart.errors import InputError
from headstart.table.columns.column import category
from headstart.table.names import as_name
from headstart.table.sources.source import BATCH, Source, convert_batch


class FrameSource(Source):
    """A pandas, polars or pyarrow frame, or another frame that narwhals supports, eager or lazy.

    A level of a pandas index whose name is in ``index`` counts as a column.
    """

    label = "the frame"

    def __init__(self, frame: Any, index: Sequence[str]) -> None:
        levels = getattr(getattr(frame, "index", None), "names", [])
        if any(level in index for level in levels):  # the result of pivot or set_index
            frame = frame.reset_index()
        try:
            self._frame: Any = nw.from_native(frame)
            own_names = list(self._frame.collect_schema().names())
        except TypeError:
            raise InputError(
                f"expected a path or a pandas, polars or pyarrow frame; got {type(frame).__name__}"
            ) from None
        except (NarwhalsError, UnicodeError) as error:
            raise InputError(f"the frame cannot be used: {' '.join(str(error).split())}") from error
        self._name_columns(own_names)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns in slices."""
        for batch in self._table([*names, *numbers], names).to_batches(BATCH):
            yield convert_batch(batch, names, numbers, self.label)

    def read(self, name: str) -> pa.Table:
        """Return the whole frame."""
        return self._table(self.columns, [name])

    def _table(self, columns: Sequence[str], names: Sequence[str]) -> pa.Table:
        own_names = self.own(columns)
        frame = self._frame.select([nw.col(own_name) for own_name in own_names])
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        arrays = [
            _to_arrow(frame.get_column(own_name), column, column in names)
            for own_name, column in zip(own_names, columns, strict=True)
        ]
        return pa.table(arrays, names=list(columns))


def _to_arrow(series: Any, column: str, has_names: bool) -> pa.Array | pa.ChunkedArray:
    try:
        return series.to_arrow()
    except (pa.ArrowException, TypeError, UnicodeError) as error:
        # Possibly a pandas column of objects of several types, such as 17 and "u17".
        try:
            indices, values = series.to_native().factorize()
        except (AttributeError, TypeError):
            reason = " ".join(str(error).split())
            raise InputError(f"the frame's column {column!r} cannot be read: {reason}") from error
    noun = f"name (column {column!r})"
    texts = [as_name(value, noun) if has_names else category(value) or str(value) for value in values]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int32(), mask=indices < 0), pa.array(texts, pa.string())
    )
