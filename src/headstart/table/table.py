"""The table: sparse observations with names, kinds and feature metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from headstart.crew import crew
from headstart.errors import naming_memory
from headstart.progress import Reporter
from headstart.table.assembling import assemble
from headstart.table.encoders import EncoderLike
from headstart.table.fingerprint import fingerprint
from headstart.table.inference import KindsLike
from headstart.table.readers import Columns, Form
from headstart.table.slicing import TableSlices
from headstart.table.sources import TextFormat

_TOO_LARGE = (
    "there is not enough memory to read the table, about 36 bytes for each observation; read fewer rows or "
    "features, or take a machine with more memory"
)


class Table(TableSlices):
    """An immutable, sparse table of observations, with names, kinds and metadata of the features.

    Use ``Table.read`` to create a table. It sorts rows and features by name.

    Parameters
    ----------
    rows, features : Names
        The names of the rows and the features.
    kinds : Kinds
        One kind per feature.
    row_index, feature_index : ndarray of shape (n,)
        The positions of the row and the feature of each observation, sorted by (row, feature): int32.
    values : ndarray of shape (n,)
        The observed values, in the data's own units: float32 if it holds every one of them exactly, as it
        does ratings, and float64 otherwise.
    metadata : pyarrow.Table, optional
        One line per feature, in the order of ``features``. Missing values are null.
    schema : MetadataSchema, optional
        How the metadata is encoded as numbers.
    notes : tuple of str
        What was inferred or skipped while reading.
    encoders : mapping of str to callable
        The functions that encode the metadata columns of the type custom.
    row_metadata : pyarrow.Table, optional
        One line per row, in the order of ``rows``. Missing values are null.
    row_schema : MetadataSchema, optional
        How the metadata of rows is encoded as numbers.
    times : ndarray of shape (n,), optional
        When each observation was made: a number, for dates the seconds since 1970.
    weights : ndarray of shape (n,), optional
        How much each observation counts; by default all count alike.

    Examples
    --------
    >>> import pyarrow as pa
    >>> stars = pa.table({"row": ["ann", "bob", "ann"], "feature": ["Alien", "Alien", "Brazil"],
    ...                   "value": [5, 3, 1]})
    >>> Table.read(stars)
    Table(2 rows × 2 features, 3 observations, 2 rating:1:5)
    """

    @classmethod
    def read(
        cls,
        observations: object,
        *,
        metadata: object = None,
        row_metadata: object = None,
        row: str | None = None,
        feature: str | None = None,
        value: str | None = None,
        time: str | None = None,
        form: Form = "auto",
        kinds: KindsLike = None,
        metadata_types: Mapping[str, str] | None = None,
        row_metadata_types: Mapping[str, str] | None = None,
        duplicates: Literal["error", "last", "mean"] = "error",
        encoders: Mapping[str, EncoderLike] | None = None,
        quiet: bool = False,
        separator: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
    ) -> Table:
        """Read a table from files or data frames.

        Parameters
        ----------
        observations : path or frame
            A .csv, .csv.gz, .tsv, .tsv.gz or .parquet file, a folder of .parquet files with the same
            columns, or a pandas, polars or pyarrow frame. The long form has one line per observation
            and the columns ``row``, ``feature`` and ``value``. The wide form has one line per row, a
            column ``row`` and one column per feature; blank cells are not observed.
        metadata : path or frame, optional
            One line per feature, with the feature's name in the column ``feature``. Features without
            observations become features of the table, too.
        row_metadata : path or frame, optional
            One line per row, with the row's name in the column ``row``. Rows without observations become
            rows of the table, too.
        row, feature, value : str, optional
            The names of the columns, "row", "feature" and "value" by default. A column that is named must
            exist; ``feature`` may be a column of the metadata only, if the observations are wide.
        time : str, optional
            The column of the long form that says when an observation was made: numbers, or dates. A model
            with a half-life lets old observations count less.
        form : {"auto", "long", "wide"}, default="auto"
            "auto" means wide if there is a ``row`` column but no ``feature`` and no ``value`` column.
        kinds : str, Kind or mapping, optional
            One kind for all features ("binary", "rating:1:5", "rating", "real") or {feature: kind},
            where ``None`` stands for all other features. Other kinds are inferred from the values, and
            ``notes`` says how.
        metadata_types : mapping of str to str, optional
            The types of metadata columns: number, date, category, labels, text, vector, custom or ignore.
            ``text`` is encoded by the default sentence encoder if it is on this machine, and as hashed
            words otherwise; ``text:MODEL`` names a sentence encoder or its folder, and ``text:128``
            hashes into 128 numbers. Other types are inferred.
        row_metadata_types : mapping of str to str, optional
            The types of row metadata columns, as ``metadata_types``; there is no type custom for them.
        duplicates : {"error", "last", "mean"}, default="error"
            What to do if one (row, feature) has several different values.
        encoders : mapping of str to callable, optional
            {column: function}: the function maps a list of n values of this metadata column, such as paths
            of images, to an array (n, width). The column gets the type custom.
        quiet : bool, default=False
            Whether to hide the progress of encoders.
        separator : str, optional
            The character between the fields of text files. By default it is detected from the header:
            a comma, semicolon, tab or vertical bar.
        decimal : str, optional
            The decimal point of text files, "." by default.
        encoding : str, optional
            The encoding of text files, UTF-8 by default.

        Returns
        -------
        Table
            The table, with rows and features sorted by name.

        Raises
        ------
        InputError
            If a source cannot be read, or contains a value that is not allowed.
        UnknownNameError
            If a column or a feature does not exist.

        Examples
        --------
        >>> import pyarrow as pa
        >>> stars = pa.table({"user": ["ann", "bob"], "Alien": [5, 3], "Brazil": [None, 1]})
        >>> films = pa.table({"feature": ["Alien", "Brazil"], "year": [1979, 1985]})
        >>> table = Table.read(stars, metadata=films, row="user", kinds="rating:1:5")
        >>> table
        Table(2 rows × 2 features, 3 observations, 2 rating:1:5)
        >>> table.notes[0]
        "the frame: read in the wide form, one column per feature; form='long' reads the long form"
        """
        with naming_memory(lambda: _TOO_LARGE):
            parts, vectors = assemble(
                observations,
                metadata,
                row_metadata,
                Columns(row, feature, value, time),
                form,
                kinds,
                metadata_types,
                row_metadata_types,
                duplicates,
                TextFormat(separator, decimal, encoding),
                encoders,
                Reporter(quiet),
            )
        table = cls(*parts)
        table.__dict__["_vectors"] = vectors  # a cached property
        return table

    def fingerprint(self) -> str:
        """Return a digest of everything in the table except ``notes``. Equal tables have equal digests."""
        return fingerprint(self)

    def describe(self) -> str:
        """Return a short description: size, kinds, observations per feature, metadata and notes.

        Returns
        -------
        str
            The description, in several lines.

        Examples
        --------
        >>> import pyarrow as pa
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> print(table.describe())
        2 rows × 2 features, 2 observations (50.00% observed)
        kinds: 2 rating:1:5
        observations per feature: 1 to 1, median 1
        metadata: none
        note: 2 features inferred as rating:1:5 (kinds='rating:1:5')
        """
        (_, rows), features = crew().span(len(self.rows)), len(self.features)
        counts = crew().total(torch.from_numpy(self.counts)).numpy() if features else np.zeros(1, np.int64)
        observations = int(counts.sum())
        density = observations / max(rows * features, 1)
        lines = [
            f"{rows} rows × {features} features, {observations} observations ({density:.2%} observed)",
            f"kinds: {self.kinds.summary()}",
            f"observations per feature: {counts.min()} to {counts.max()}, median {np.median(counts):g}",
            f"metadata: {self.schema.describe()} ({self.schema.width} numbers per feature)"
            if self.schema
            else "metadata: none",
        ]
        if self.row_schema is not None:
            lines.append(f"row metadata: {self.row_schema.describe()}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        rows, features = self.shape
        return f"Table({rows} rows × {features} features, {len(self)} observations, {self.kinds.summary()})"
