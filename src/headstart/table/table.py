"""The table: sparse observations with names, kinds and feature metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.errors import InputError, listed
from headstart.table.arranging import DUPLICATES, arrange, merge_duplicates
from headstart.table.cells import Cells, offsets
from headstart.table.coder import in_order
from headstart.table.inference import KindsGiven, check_values, parse_kind, settle_kinds
from headstart.table.kinds import Kinds
from headstart.table.metadata import MetadataSchema
from headstart.table.names import Names
from headstart.table.readers import Form, choose_form, read_long, read_wide
from headstart.table.sources import open_source
from headstart.table.tidying import align, read_metadata, refuse_non_finite


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Which rows were observed to have which values of which features; immutable.

    ``Table.read`` makes one; rows and features come out in the order of their names. Observations
    are sorted by (row, feature), and values are in the data's own units.

    >>> stars = pa.table({"row": ["ann", "bob", "ann"], "feature": ["Alien", "Alien", "Brazil"],
    ...                   "value": [5, 3, 1]})
    >>> Table.read(stars)
    Table(2 rows × 2 features, 3 observations, 2 rating:1:5)
    """

    rows: Names
    features: Names
    kinds: Kinds
    row_index: NDArray[np.int64]  # (n,)
    feature_index: NDArray[np.int64]  # (n,)
    values: NDArray[np.float64]  # (n,)
    metadata: pa.Table | None = None  # a line a feature, in their order; nulls where nothing is known
    schema: MetadataSchema | None = None
    notes: tuple[str, ...] = ()  # what was inferred or dropped while reading

    def __post_init__(self) -> None:
        for name, kind in (("row_index", np.int64), ("feature_index", np.int64), ("values", np.float64)):
            array = np.asarray(getattr(self, name), dtype=kind).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        rows, features = np.diff(self.row_index), np.diff(self.feature_index)
        if ((rows < 0) | ((rows == 0) & (features <= 0))).any():
            raise InputError("a table's observations must be sorted by (row, feature), each pair once")

    @classmethod
    def read(
        cls,
        observations: object,
        *,
        metadata: object = None,
        row: str = "row",
        feature: str = "feature",
        value: str = "value",
        form: Form = "auto",
        kinds: KindsGiven = None,
        metadata_types: Mapping[str, str] | None = None,
        duplicates: Literal["error", "last", "mean"] = "error",
    ) -> Table:
        """Read a table from a file (.csv, .csv.gz, .tsv, .parquet) or a pandas, polars or pyarrow frame.

        ``row``, ``feature`` and ``value`` name the columns of the long form; the wide form has a
        ``row`` column and one column a feature, with blanks. ``metadata`` has a line a feature, with
        its name in a column called like ``feature``; features it alone knows are kept. ``kinds`` is
        one kind for all features ("binary", "rating:1:5", "rating", "real") or {feature: kind};
        the rest is inferred, and ``notes`` says how. ``metadata_types`` maps columns to number, date,
        category, labels, text, vector or ignore. ``duplicates`` says what to do where one (row,
        feature) has several values.
        """
        if duplicates not in DUPLICATES:
            raise InputError(f"duplicates must be one of {', '.join(DUPLICATES)}; got {duplicates!r}")
        for kind in kinds.values() if isinstance(kinds, Mapping) else () if kinds is None else (kinds,):
            parse_kind(kind)
        source = open_source(observations, (row, feature, value))
        form = choose_form(source, form, row, feature, value)
        # First what is small, so that its faults are told before the long work.
        known = None if metadata is None else read_metadata(open_source(metadata, (feature,)), feature)
        found = read_long(source, row, feature, value) if form == "long" else read_wide(source, row)
        notes = [*found.notes, *(_compared(found.features, known[0]) if known else ())]
        rows = Names(in_order(found.rows), "row")
        features = Names(in_order([*found.features, *(known[0] if known else ())]), "feature")
        keys = (rows.positions(found.rows) * len(features))[found.row_codes]
        keys += features.positions(found.features)[found.feature_codes]
        values = found.values
        del found  # memory peaks in the sorting
        arranged = arrange(keys, values, len(features))
        del keys, values
        arranged, merging = merge_duplicates(arranged, rows, features, duplicates)
        settled, inferring = settle_kinds(kinds, features, arranged.feature_index, arranged.values)
        if kinds is not None:
            check_values(settled, rows, features, *arranged)
        notes += [*merging, *inferring]
        lines = schema = None
        if known and known[1].num_columns:
            lines = align(*known, features)
            types = dict(metadata_types or {})
            refuse_non_finite(
                lines.select([name for name in lines.column_names if types.get(name) != "ignore"]), features
            )
            schema = MetadataSchema.fit(lines, types)
            notes.append(f"metadata taken as {schema.describe()}; pass metadata_types= to say otherwise")
        elif metadata_types:
            raise InputError("metadata_types was given, but there are no columns of metadata to apply it to")
        return cls(rows, features, settled, *arranged, lines, schema, tuple(notes))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and features there are."""
        return len(self.rows), len(self.features)

    @property
    def density(self) -> float:
        """The share of all (row, feature) that is observed."""
        return len(self) / max(len(self.rows) * len(self.features), 1)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many observations each feature has: (features,)."""
        return np.bincount(self.feature_index, minlength=len(self.features))

    def cells(self) -> Cells:
        """The observations as models take them: rows × features, values on the models' scale."""
        per_row = torch.from_numpy(np.bincount(self.row_index, minlength=len(self.rows)))
        scaled = self.kinds.scale(self.values, self.feature_index).astype(np.float32)
        index = torch.from_numpy(self.feature_index.copy())
        return Cells(offsets(per_row), index, torch.from_numpy(scaled), len(self.features))

    def encoded_metadata(self) -> NDArray[np.float32]:
        """What is known of each feature, as numbers: (features, width); width 0 without metadata."""
        if self.metadata is None or self.schema is None:
            return np.zeros((len(self.features), 0), np.float32)
        return self.schema.encode_table(self.metadata)

    def with_features(self, features: Iterable[object]) -> Table:
        """Return the table of these features only, in this order, with all rows and their metadata.

        Features are given by name, or as a numpy array of positions (integers) or of truth values.
        """
        positions = self._positions(features)
        target = np.full(len(self.features), -1)
        target[positions] = np.arange(len(positions))
        if len(positions) > len(np.unique(positions)):
            raise InputError("a feature was named twice; each can be taken once")
        there = target[self.feature_index] >= 0
        keys = self.row_index[there] * len(positions) + target[self.feature_index[there]]
        return replace(
            self,
            features=self.features.take(positions),
            kinds=self.kinds.take(positions),
            **arrange(keys, self.values[there], len(positions))._asdict(),
            metadata=None if self.metadata is None else self.metadata.take(pa.array(positions)),
        )

    def without_features(self, features: Iterable[object]) -> Table:
        """Return the table without these features; all rows stay."""
        keep = np.full(len(self.features), True)
        keep[self._positions(features)] = False
        return self.with_features(keep)

    def observations_of(self, feature: object) -> dict[str, float]:
        """The observations of one feature: {row: value}."""
        there = np.flatnonzero(self.feature_index == self.features.position(feature))
        names = (self.rows[i] for i in self.row_index[there])
        return dict(zip(names, self.values[there].tolist(), strict=True))

    def fingerprint(self) -> str:
        """A digest of all that the table holds (``notes`` aside): equal for equal tables only."""
        digest = hashlib.sha256()
        for names in (self.rows, self.features, map(str, self.kinds)):
            digest.update(repr(list(names)).encode())
        for array in (self.row_index, self.feature_index, self.values):
            digest.update(np.ascontiguousarray(array).data)
        if self.metadata is not None:
            digest.update(str(self.schema and self.schema.model_dump_json()).encode())
            for column in self.metadata.columns:
                # Nulls apart, since what Arrow stores in their place is arbitrary.
                digest.update(column.is_null().to_numpy(zero_copy_only=False).tobytes())
                digest.update(_serialized(column.drop_null()))
        return digest.hexdigest()

    def describe(self) -> str:
        """Say what the table holds, in a few lines."""
        rows, features = self.shape
        counts = self.counts if features else np.zeros(1, np.int64)
        lines = [
            f"{rows} rows × {features} features, {len(self)} observations ({self.density:.2%} observed)",
            f"kinds: {self.kinds.summary()}",
            f"observations a feature: {counts.min()} to {counts.max()}, median {np.median(counts):g}",
            f"metadata: {self.schema.describe()} ({self.schema.width} numbers a feature)"
            if self.schema
            else "metadata: none",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        rows, features = self.shape
        return f"Table({rows} rows × {features} features, {len(self)} observations, {self.kinds.summary()})"

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
            and self.schema == other.schema
            and (self.metadata is None) == (other.metadata is None)
            and (self.metadata is None or self.metadata.equals(other.metadata))
        )

    def __hash__(self) -> int:
        return hash((self.shape, len(self)))

    def _positions(self, features: Iterable[object]) -> NDArray[np.int64]:
        if isinstance(features, str):
            raise InputError(f"features must be a list of names; got the text {features!r}")
        if not isinstance(features, np.ndarray) or features.dtype.kind not in "biu":
            return self.features.positions(features)
        try:
            return np.arange(len(self.features))[features]
        except IndexError as error:
            raise InputError(f"positions beyond the table's {len(self.features)} features: {error}") from None


def _compared(observed: list[str], described: list[str]) -> list[str]:
    """Say which features have only observations, or only metadata."""
    notes = []
    if bare := sorted(set(observed) - set(described)):
        notes.append(f"features without metadata: {len(bare)} ({listed(bare)})")
    if new := sorted(set(described) - set(observed)):
        notes.append(f"features with metadata but no observations: {len(new)} ({listed(new)})")
    return notes


def _serialized(column: pa.ChunkedArray) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"": column.type})) as writer:
        writer.write_table(pa.table([column.combine_chunks()], names=[""]))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
