"""The immutable table of sparse observations, with names, kinds and metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.display import count, facts_html
from headstart.distributed import rows_are_sharded
from headstart.errors import InputError, explain_memory_error, guard_methods, join_names
from headstart.progress import Reporter
from headstart.table.cells import (
    Cells,
    Floats,
    Positions,
    chunk_slices,
    count_positions,
    is_sorted,
    require_positions,
    smallest_exact,
    take_positions,
)
from headstart.table.kind_inference import KindsLike
from headstart.table.kinds import (
    Kind,
    Kinds,
    feature_kinds,
    group_columns,
    owner_of_column,
    require_representable,
)
from headstart.table.matrices import is_matrix, matrix_source
from headstart.table.metadata import MetadataSchema
from headstart.table.missing_values import MissingCodes, MissingLike
from headstart.table.names import Names
from headstart.table.not_applicable import NO_CELLS, NotApplicable
from headstart.table.reading import Columns, Form, assemble, sort_observations
from headstart.table.shards import global_count, global_sum
from headstart.table.sources import TextFormat
from headstart.table.text_encoders import EncoderLike
from headstart.table.times import check_weights
from headstart.table.words import Words

Number = TypeVar("Number", bound=np.floating[Any])

_TOO_LARGE = (
    "there is not enough memory to read the table, about 36 bytes for each observation; read fewer rows or "
    "features, or take a machine with more memory"
)


@guard_methods
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """An immutable, sparse table of observations, with names, kinds and metadata of the features.

    Use ``Table.read`` to create a table. Rows and features of the long form are sorted by name; those of the
    wide form keep their order. A category has one binary column per level, named ``FEATURE=LEVEL``, in
    ``features``, ``kinds`` and the observations.

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
        Notes on the form, kinds and types that were inferred while reading, and on skipped data.
    encoders : mapping of str to callable
        The functions that encode the metadata columns of the type custom.
    row_metadata : pyarrow.Table, optional
        One line per row, in the order of ``rows``. Missing values are null.
    row_schema : MetadataSchema, optional
        How the metadata of rows is encoded as numbers.
    times : ndarray of shape (n,), optional
        The time of each observation: a number, for dates the seconds since 1970.
    weights : ndarray of shape (n,), optional
        The weight of each observation; by default all weights are 1.
    words : Words
        What rows, features and values are called, and which metadata column is the title.
    not_applicable : NotApplicable
        The cells whose feature does not apply to their row.

    Examples
    --------
    >>> import pyarrow as pa
    >>> stars = pa.table({"row": ["ann", "bob", "ann"], "feature": ["Alien", "Alien", "Brazil"],
    ...                   "value": [5, 3, 1]})
    >>> Table.read(stars)
    Table(2 rows × 2 features, 3 observations, 2 rating:1:5)
    """

    rows: Names
    features: Names
    kinds: Kinds
    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    metadata: pa.Table | None = None
    schema: MetadataSchema | None = None
    notes: tuple[str, ...] = ()
    encoders: Mapping[str, EncoderLike] = field(default_factory=dict)
    row_metadata: pa.Table | None = None
    row_schema: MetadataSchema | None = None
    times: NDArray[np.float64] | None = None  # (n,)
    weights: NDArray[np.float64] | None = None  # (n,)
    words: Words = field(default_factory=Words)
    not_applicable: NotApplicable = NO_CELLS

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
        weight: str | None = None,
        form: Form = "auto",
        kinds: KindsLike = None,
        metadata_types: Mapping[str, str] | None = None,
        row_metadata_types: Mapping[str, str] | None = None,
        duplicates: Literal["error", "last", "mean", "sum"] = "error",
        missing: MissingLike = None,
        not_applicable: MissingLike = None,
        encoders: Mapping[str, EncoderLike] | None = None,
        quiet: bool = False,
        separator: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        row_names: Sequence[object] | None = None,
        feature_names: Sequence[object] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> Table:
        """Read a table from files, data frames or arrays.

        Parameters
        ----------
        observations : path, frame, array or sparse matrix
            A .csv, .csv.gz, .tsv, .tsv.gz or .parquet file, a folder of .parquet files with the same
            columns, a .sav, .dta, .sas7bdat (extra ``survey``) or .xlsx file (extra ``excel``), the address
            of such a file (``s3://``, ``https://``), or a pandas, polars or pyarrow frame. The long form
            has one line per observation and the columns ``row``, ``feature`` and ``value``. The wide form
            has one line per row, a column ``row`` and one column per feature; blank cells are not observed.
            An array of shape (rows, features) has NaN where nothing is observed; of a sparse matrix, the
            stored entries are observed, including stored zeros.
        metadata : path or frame, optional
            One line per feature, with the feature's name in the column ``feature``. Features without
            observations become features of the table, too. Of a .sav, .dta or .sas7bdat file, the labels of
            its variables are read as a column ``label``.
        row_metadata : path or frame, optional
            One line per row, with the row's name in the column ``row``. Rows without observations become
            rows of the table, too.
        row, feature, value : str, optional
            The names of the columns, "row", "feature" and "value" by default. A column that is named must
            exist; ``feature`` may be a column of the metadata only, if the observations are wide.
        time : str, optional
            The column of the long form that says when an observation was made: numbers, or dates. A model
            with a half-life lets old observations count less.
        weight : str, optional
            The column of weights, numbers above 0: survey weights, or confidence. An observation of weight
            2 counts as much as two observations of weight 1. In the wide form a weight belongs to a row,
            and all its observations have it.
        form : {"auto", "long", "wide"}, default="auto"
            "auto" means wide if there is a ``row`` column but no ``feature`` and no ``value`` column.
        kinds : str, Kind or mapping, optional
            One kind for all features ("binary", "rating:1:5", "rating", "real") or {feature: kind},
            where ``None`` stands for all other features. Other kinds are inferred from the values, and
            ``notes`` says how.
        metadata_types : mapping of str to str, optional
            The types of metadata columns: number, date, category, labels, text, vector, custom or ignore.
            ``text`` is encoded by the default sentence encoder if it is on this machine, otherwise by word
            pieces (``text:static``) or, below 64 texts, by hashed words (``text:64``); ``text:MODEL`` names
            a sentence encoder or its folder, and ``text:128`` hashes words into 128 numbers. Other types are
            inferred.
        row_metadata_types : mapping of str to str, optional
            The types of row metadata columns, as ``metadata_types``; there is no type custom for them.
        duplicates : {"error", "last", "mean", "sum"}, default="error"
            What to do if one (row, feature) has several different values. Repeated clicks
            (``kinds="click"``) are added up by default.
        missing : number, text or list of them, optional
            Codes for missing values among the observations, as ``[-9, "refused"]``: a cell with one of them
            is not observed.
        not_applicable : number, text or list of them, optional
            Codes that mean that a feature does not apply to a row, as ``[-8, "n/a"]``: the cell is not
            observed, and is never predicted.
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
        row_names, feature_names : sequence of str or int, optional
            The names of the rows and features of an array or sparse matrix, by default 0, 1, 2 and so on.
        words : mapping, optional
            The nouns for a ``row``, a ``feature`` and a ``value`` on the page and in messages, by default the
            names of their columns, and the metadata column of the ``title``, by default title, or name.

        Returns
        -------
        Table
            The table. Rows and features of the long form are sorted by name; those of the wide form keep
            the order of the source, so that arrays of predictions line up with it.

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
        with explain_memory_error(lambda: _TOO_LARGE):
            if is_matrix(observations):
                observations = matrix_source(observations, row_names, feature_names)
                row = row or observations.columns[0]
            elif row_names is not None or feature_names is not None:
                raise InputError("row_names and feature_names are for an array or a sparse matrix only")
            excluded = MissingCodes.of(not_applicable, "not_applicable")
            parts, vectors = assemble(
                observations,
                metadata=metadata,
                row_metadata=row_metadata,
                columns=Columns(row, feature, value, time, weight),
                form=form,
                kinds=kinds,
                metadata_types=metadata_types,
                row_metadata_types=row_metadata_types,
                duplicates=duplicates,
                text=TextFormat(separator, decimal, encoding, MissingCodes.of(missing) + excluded, excluded),
                encoders=encoders,
                words=words,
                reporter=Reporter(quiet),
            )
        table = cls(**parts._asdict())
        table.__dict__["_vectors"] = vectors  # a cached property
        return table

    def __post_init__(self) -> None:
        if any(part is not None and len(part) != len(self.values) for part in (self.times, self.weights)):
            raise InputError("a table has one time and one weight for each observation")
        if self.weights is not None:
            weights = check_weights(np.asarray(self.weights, dtype=np.float64), self._name_cell)
            object.__setattr__(self, "weights", weights)
        require_positions(len(self.rows), "rows")
        require_positions(len(self.features), "features")
        for name in ("row_index", "feature_index", "values"):
            array = getattr(self, name)
            array = smallest_exact(array) if name == "values" else np.asarray(array, dtype=np.int32)
            array = array.view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if not is_sorted(self.row_index, self.feature_index):
            raise InputError("a table's observations must be sorted by (row, feature), each pair once")
        if len(self.not_applicable):  # only cells of rows and features of the table
            features = set(map(owner_of_column, self.features, self.kinds))
            object.__setattr__(self, "not_applicable", self.not_applicable.within(self.rows, features))

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return (
            self.rows == other.rows
            and self.features == other.features
            and self.kinds == other.kinds
            and np.array_equal(self.row_index, other.row_index)
            and np.array_equal(self.feature_index, other.feature_index)
            and np.array_equal(self.values, other.values)
            and _are_equal(self.times, other.times)
            and _are_equal(self.weights, other.weights)
            and self.not_applicable == other.not_applicable
            and self.schema == other.schema
            and (self.metadata is None) == (other.metadata is None)
            and (self.metadata is None or self.metadata.equals(other.metadata))
            and self.row_schema == other.row_schema
            and (self.row_metadata is None) == (other.row_metadata is None)
            and (self.row_metadata is None or self.row_metadata.equals(other.row_metadata))
        )

    def __hash__(self) -> int:
        return hash((self.shape, len(self)))

    def __repr__(self) -> str:
        rows, features = self.shape
        kinds = feature_kinds(self.features, self.kinds).summary()
        left_out = len(self.not_applicable)
        more = f", {count(left_out, 'cell')} not applicable" if left_out else ""
        return f"Table({rows} rows × {features} features, {self.answers} observations, {kinds}{more})"

    def _repr_html_(self) -> str:
        rows, features = self.shape
        facts = [
            ("rows", f"{rows}"),
            ("features", f"{features}"),
            ("observations", f"{self.answers} ({self.density:.2%} observed)"),
            ("kinds", feature_kinds(self.features, self.kinds).summary()),
            ("metadata", self.schema.describe() if self.schema else "none"),
        ]
        if self.row_schema is not None:
            facts.append(("row metadata", self.row_schema.describe()))
        return facts_html([*facts, *(("note", note) for note in self.notes)], "Table")

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
        rows, features = global_count(len(self.rows)), self.shape[1]
        counts = global_sum(self.counts[self._first_columns]) if features else np.zeros(1, np.int64)
        observations = int(counts.sum())
        density = observations / max(rows * features, 1)
        lines = [
            f"{rows} rows × {features} features, {observations} observations ({density:.2%} observed)",
            f"kinds: {feature_kinds(self.features, self.kinds).summary()}",
            f"observations per feature: {counts.min()} to {counts.max()}, median {np.median(counts):g}",
            f"metadata: {self.schema.describe()} ({self.schema.width} numbers per feature)"
            if self.schema
            else "metadata: none",
        ]
        if self.row_schema is not None:
            lines.append(f"row metadata: {self.row_schema.describe()}")
        if self.weights is not None:
            least, most = self.weights.min(), self.weights.max()
            lines.append(f"weights: {least:.4g} to {most:.4g}, mean {self.weights.mean():.4g}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the number of features; a category is one feature."""
        return len(self.rows), len(self._first_columns)

    @property
    def density(self) -> float:
        """The fraction of all (row, feature) pairs that are observed."""
        return self.answers / max(self.shape[0] * self.shape[1], 1)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of observations of each feature: (features,)."""
        return count_positions(self.feature_index, len(self.features))

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """The number of the feature of each column: equal for the levels of one category (columns,)."""
        return group_columns(self.features, self.kinds)

    @cached_property
    def _first_columns(self) -> NDArray[np.int64]:
        """The position of the first column of each feature: (features,)."""
        return np.unique(self.groups, return_index=True)[1]

    @property
    def answers(self) -> int:
        """The number of observed cells; an answer to a category is one."""
        return int(self.counts[self._first_columns].sum())

    def fingerprint(self) -> str:
        """Return a digest of everything in the table except ``notes``. Equal tables have equal digests."""
        return fingerprint(self)

    def as_clicks(self, at_least: float | None = None) -> Self:
        """Return the observations of at least a value as clicks, to rank by relevance instead of values.

        Parameters
        ----------
        at_least : float, optional
            The smallest value that counts as a click, in the units of the data. By default every observation
            counts: which cells are observed, without their values.

        Returns
        -------
        Table
            The table of all rows and of the features with a click. Every value is 1.

        Examples
        --------
        >>> from headstart.datasets import synthetic_ratings
        >>> synthetic_ratings(100, 20, 0.5).as_clicks(at_least=3).kinds
        Kinds(20 click)
        """
        chosen = np.ones(len(self), bool) if at_least is None else self.values >= at_least
        if not chosen.any():
            raise InputError(f"no value of the table is at least {at_least:g}; there would be no clicks")
        clicks = replace(
            self.with_observations(chosen),
            kinds=Kinds([Kind.parse("click")] * len(self.features)),
            values=np.ones(int(chosen.sum()), np.float32),
        )
        return clicks.with_features(np.flatnonzero(clicks.counts > 0))

    def with_features(self, features: Iterable[object]) -> Self:
        """Return a table of some features only. All rows stay.

        Parameters
        ----------
        features : iterable of names or ndarray
            The names of the features, or an array of positions (integers), or a mask (booleans).

        Returns
        -------
        Table
            The table of these features in this order.

        Raises
        ------
        InputError
            If a feature is unknown or listed twice.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.with_features(["y"]).shape
        (2, 1)
        """
        positions = self._positions(features)
        if np.array_equal(positions, np.arange(len(self.features))):
            return self  # a table is immutable, so nothing needs to be copied
        new_positions = np.full(len(self.features), -1, np.int32)
        new_positions[positions] = np.arange(len(positions), dtype=np.int32)
        unique, counts = np.unique(positions, return_counts=True)
        if len(unique) < len(positions):
            repeated = self.features.take(unique[counts > 1])
            raise InputError(f"features listed twice: {join_names(repeated)}; list each feature once")
        feature_index = take_positions(new_positions, self.feature_index)
        chosen = feature_index >= 0
        shape = len(self.rows), len(positions)
        times, weights = (None if part is None else part[chosen] for part in (self.times, self.weights))
        ordered = sort_observations(
            self.row_index[chosen], feature_index[chosen], self.values[chosen], shape, times, weights
        )
        table = replace(
            self,
            features=self.features.take(positions),
            kinds=self.kinds.take(positions),
            **ordered._asdict(),
            metadata=None if self.metadata is None else self.metadata.take(pa.array(positions)),
        )
        if "_vectors" in self.__dict__:
            table.__dict__["_vectors"] = {name: array[positions] for name, array in self._vectors.items()}
        return table

    def with_observations(self, observations: NDArray[np.bool_]) -> Self:
        """Return a table of some observations only. All rows and features stay.

        Parameters
        ----------
        observations : ndarray of shape (n,)
            The mask of the observations.

        Returns
        -------
        Table
            The table of these observations.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.with_observations(table.values > 2).observations_of("y")
        {'b': 5.0}
        """
        return replace(
            self,
            row_index=self.row_index[observations],
            feature_index=self.feature_index[observations],
            values=self.values[observations],
            times=None if self.times is None else self.times[observations],
            weights=None if self.weights is None else self.weights[observations],
        )

    def with_rows(self, rows: NDArray[np.bool_]) -> Self:
        """Return a table of some rows only. All features stay.

        Parameters
        ----------
        rows : ndarray of shape (rows,)
            The mask of the rows.

        Returns
        -------
        Table
            The table of these rows, in the same order.

        Examples
        --------
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.with_rows(np.array([False, True])).shape
        (1, 2)
        """
        if rows.all():
            return self
        chosen, positions = rows[self.row_index], np.flatnonzero(rows)
        new_positions = (np.cumsum(rows) - 1).astype(np.int32)
        times, weights = (None if part is None else part[chosen] for part in (self.times, self.weights))
        table = replace(
            self,
            rows=self.rows.take(positions),
            row_index=take_positions(new_positions, self.row_index[chosen]),
            feature_index=self.feature_index[chosen],
            values=self.values[chosen],
            row_metadata=None if self.row_metadata is None else self.row_metadata.take(pa.array(positions)),
            times=times,
            weights=weights,
        )
        if "_vectors" in self.__dict__:
            table.__dict__["_vectors"] = self._vectors
        return table

    def without_features(self, features: Iterable[object]) -> Self:
        """Return a table without some features. All rows stay.

        Parameters
        ----------
        features : iterable of names or ndarray
            The features to remove, as in ``with_features``.

        Returns
        -------
        Table
            The table of all other features, in their order.

        Raises
        ------
        InputError
            If a feature is unknown.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> list(table.without_features(["y"]).features)
        ['x']
        """
        mask = np.full(len(self.features), True)
        mask[self._positions(features)] = False
        return self.with_features(mask)

    def observations_of(self, feature: object) -> dict[str, float]:
        """Return the observations of one feature.

        Parameters
        ----------
        feature : str or int
            The name of the feature.

        Returns
        -------
        dict of str to float
            The observed values as {row: value}, in the data's own units.

        Raises
        ------
        UnknownNameError
            If there is no such feature.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.observations_of("y")
        {'b': 5.0}
        """
        positions = np.flatnonzero(self.feature_index == self.features.position(feature))
        names = (self.rows[i] for i in self.row_index[positions])
        return dict(zip(names, self.values[positions].tolist(), strict=True))

    def cells(self) -> Cells:
        """Return the observations as sparse tensors, the input of models.

        Returns
        -------
        Cells
            One line per row, with positions of features and values on the models' scale.

        Raises
        ------
        InputError
            If a value is too large to compute with.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from headstart.table import Table
        >>> table = Table.read(pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]}))
        >>> table.cells().values
        tensor([0., 1.])
        """
        values = np.empty(len(self), np.float32)
        for part in chunk_slices(len(self)):  # temporary arrays are float64
            scaled = self.kinds.scale(self.values[part], self.feature_index[part])
            require_representable(self.values[part], scaled, partial(self._name_cell_after, part.start))
            with np.errstate(over="ignore"):
                values[part] = scaled
        weights = None if self.weights is None else torch.from_numpy(self.weights).float()
        return Cells(
            torch.from_numpy(self.starts),
            _as_tensor(self.feature_index),
            torch.from_numpy(values),
            len(self.features),
            weights,
        )

    def by_feature(self, numbers: NDArray[Number]) -> tuple[Positions, NDArray[Number]]:
        """Sort the rows of the observations and ``numbers`` of them (n,) by (feature, row): two of (n,)."""
        from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

        columns = csr_array(
            (numbers, self.feature_index, self.starts), shape=(len(self.rows), len(self.features))
        ).tocsc()
        return columns.indices, columns.data

    @property
    def starts(self) -> NDArray[np.int64]:
        """The position of the first observation of each row, and the end of the last: (rows + 1,)."""
        rows = np.arange(len(self.rows) + 1, dtype=np.int32)  # another type would copy the whole index
        return np.searchsorted(self.row_index, rows).astype(np.int64)

    def encoded_metadata(self) -> NDArray[np.float32]:
        """Return each feature's metadata as numbers: (features, width); width 0 without metadata."""
        if self.metadata is None or self.schema is None:
            return np.zeros((len(self.features), 0), np.float32)
        return self.schema.encode_table(self.metadata, self.encoders, self._vectors)

    def encoded_row_metadata(self) -> NDArray[np.float32]:
        """Return each row's metadata as numbers: (rows, width); width 0 without row metadata."""
        if self.row_metadata is None or self.row_schema is None:
            return np.zeros((len(self.rows), 0), np.float32)
        return self.row_schema.encode_table(self.row_metadata)

    @cached_property
    def _vectors(self) -> dict[str, NDArray[np.float32]]:
        """The vectors of the metadata columns with an encoder: (features, width) each."""
        if self.metadata is None or self.schema is None:
            return {}
        return self.schema.vectors(self.metadata, self.encoders)

    def _positions(self, features: Iterable[object]) -> NDArray[np.int64]:
        if isinstance(features, str):
            raise InputError(f"features must be a list of names; got the text {features!r}")
        if not isinstance(features, np.ndarray) or features.dtype.kind not in "biu":
            return self.features.positions(features)
        try:
            return np.arange(len(self.features))[features]
        except IndexError as error:
            raise InputError(
                f"positions do not fit a table of {len(self.features)} features: {error}"
            ) from None

    def _name_cell_after(self, start: int, observation: int) -> str:
        return self._name_cell(start + observation)

    def _name_cell(self, observation: int) -> str:
        """Return the row and feature of an observation, for messages."""
        row, feature = self.row_index[observation], self.feature_index[observation]
        return f"row {self.rows[row]!r}, feature {self.features[feature]!r}"


def _as_tensor(index: Positions) -> Tensor:
    """Return the index as a tensor on the same memory if possible: tables and cells are never written to."""
    view = index.view()
    try:
        view.flags.writeable = True  # PyTorch warns of read-only memory
    except ValueError:  # the memory of a mapped file, for example
        view = index.copy()
    return torch.from_numpy(view)


def _are_equal(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def fingerprint(table: Table) -> str:
    """Return the SHA-256 digest of everything in a table except its notes.

    The digest of a table that is divided among processes does not depend on their number.
    """
    digest = hashlib.sha256()
    sharded = rows_are_sharded()
    for names in (() if sharded else table.rows, table.features, map(str, table.kinds)):
        digest.update(repr(list(names)).encode())
    arrays = (table.row_index, table.feature_index, table.values, table.times, table.weights)
    for array in _observation_hashes(table) if sharded else arrays:
        if array is not None:
            _update_digest(digest, array)
    if len(table.not_applicable):
        digest.update(repr(sorted(table.not_applicable)).encode())
    for schema, metadata in ((table.schema, table.metadata), (table.row_schema, table.row_metadata)):
        if metadata is None:
            continue
        digest.update(str(schema and schema.model_dump_json()).encode())
        for column in metadata.columns:
            # Nulls are separate, because the bytes that Arrow stores in their place are arbitrary.
            digest.update(column.is_null().to_numpy(zero_copy_only=False).tobytes())
            digest.update(_serialize(column.drop_null()))
    return digest.hexdigest()


def _update_digest(digest: hashlib._Hash, array: NDArray[Any]) -> None:
    """Add numbers in 8 bytes each, so that the digest does not depend on the type of the array."""
    wide = np.float64 if array.dtype.kind == "f" else np.int64
    for part in chunk_slices(len(array)):
        digest.update(np.ascontiguousarray(array[part], dtype=wide).data)


def _observation_hashes(table: Table) -> list[NDArray[np.int64]]:
    """Return sums of hashes of all observations and all rows; sums do not depend on the order."""
    names = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in table.rows]
    rows = np.frombuffer(b"".join(names), dtype=np.uint64)
    sums = []
    for salt in (1, 2):
        row_hashes, total = _mix_bits(rows + np.uint64(salt)), np.uint64(0)
        for part in chunk_slices(len(table)):
            cells = _mix_bits(row_hashes[table.row_index[part]] + table.feature_index[part].astype(np.uint64))
            values = table.values[part].astype(np.float64).view(np.uint64)
            total = np.add(total, _mix_bits(cells + values).sum(dtype=np.uint64), dtype=np.uint64)
        both = np.array([total, row_hashes.sum(dtype=np.uint64)], dtype=np.uint64)
        sums.append(global_sum(both.view(np.int64)))
    return sums


def _mix_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each number by the finaliser of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _serialize(column: pa.ChunkedArray) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"": column.type})) as writer:
        writer.write_table(pa.table([column.combine_chunks()], names=[""]))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
