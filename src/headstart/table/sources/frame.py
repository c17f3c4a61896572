"""Frames in memory, whichever library they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import narwhals as nw
import pyarrow as pa
from narwhals.exceptions import NarwhalsError

from headstart.errors import InputError
from headstart.table.columns.column import category
from headstart.table.names import as_name
from headstart.table.sources.source import BATCH, Source, typed


class FrameSource(Source):
    """A pandas, polars or pyarrow frame, or any other that narwhals knows, eager or lazy.

    A level of a pandas index that is called like one of ``index`` counts as a column.
    """

    label = "the frame"

    def __init__(self, frame: Any, index: Sequence[str]) -> None:
        levels = getattr(getattr(frame, "index", None), "names", [])
        if any(level in index for level in levels):  # as pivot and set_index leave it
            frame = frame.reset_index()
        try:
            self._frame: Any = nw.from_native(frame)
            self._own = list(self._frame.collect_schema().names())
        except TypeError:
            raise InputError(
                f"expected a path or a pandas, polars or pyarrow frame; got {type(frame).__name__}"
            ) from None
        except NarwhalsError as error:
            raise InputError(f"the frame cannot be used: {error}") from error
        self._name_columns(self._own)

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns in slices."""
        for batch in self._table([*names, *numbers], names).to_batches(BATCH):
            yield typed(batch, names, numbers, self.label)

    def read(self, name: str) -> pa.Table:
        """Return the whole frame."""
        return self._table(self.columns, [name])

    def _table(self, columns: Sequence[str], names: Sequence[str]) -> pa.Table:
        own = dict(zip(self.columns, self._own, strict=True))
        frame = self._frame.select([nw.col(own[column]) for column in columns])
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        arrays = [_arrow(frame.get_column(own[column]), column, column in names) for column in columns]
        return pa.table(arrays, names=list(columns))


def _arrow(series: Any, column: str, named: bool) -> pa.Array | pa.ChunkedArray:
    try:
        return series.to_arrow()
    except (pa.ArrowException, TypeError) as error:
        # Perhaps an object column of pandas that mixes, say, 17 and "u17".
        try:
            codes, found = series.to_native().factorize()
        except (AttributeError, TypeError):
            raise InputError(f"the frame's column {column!r} cannot be read: {error}") from error
    what = f"name (column {column!r})"
    texts = [as_name(value, what) if named else category(value) or str(value) for value in found]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, pa.int32(), mask=codes < 0), pa.array(texts, pa.string())
    )
