"""Define one split of a table: known and new features, known and held-out rows, contexts and targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from problem import Context, Problem, known_and_new
from scipy.sparse import csr_matrix

from generality.ordered import Floats, Ordered
from headstart import Kind, Table
from headstart.errors import InputError
from headstart.evaluate.splits import FeatureSplit
from headstart.table import Names
from headstart.table.kinds import KindType
from headstart.training.table_inputs import hide_scales

SHOTS = (0, 1, 2, 4, 8, 16, 32)
ROW_SHOTS = (0, 1, 2, 4, 8, 16)
BOTH = 4  # shots of the feature and of the row where both are few
_NEW, _LEAST, _MOST_ROWS = 0.2, 8, 200


@dataclass(frozen=True)
class Trial:
    """A table split into known and new features, and into known and held-out rows.

    Methods are fitted on ``known``: known features at known rows. Feature indices of ``new_cells`` and
    ``both_cells`` are positions in ``new``, those of ``row_cells`` in ``known``; rows of ``new_cells``
    are positions in ``known.rows``, those of the other two in ``held_rows``.
    """

    known: Table  # known rows × known features
    new: Table  # known rows × new features; kinds tell nothing of their values
    held_rows: tuple[str, ...]
    new_cells: Ordered
    row_cells: Ordered | None
    both_cells: Ordered | None  # observations of new features at held-out rows: all are targets
    deviation_known: Floats  # (known,), of all observations of the table
    deviation_new: Floats  # (new,)

    @classmethod
    def of(cls, table: Table, seed: int, hold_rows: bool = True) -> Trial:
        """Split by a seed: a fifth of the features is new (8 at least), a fifth of the rows held out."""
        rows, features = table.shape
        count = max(round(_NEW * features), _LEAST)
        if features < 2 * _LEAST:
            raise InputError(f"a trial needs {2 * _LEAST} features at least; got {features}")
        generator = np.random.default_rng(seed)
        new, known = np.split(generator.permutation(features), [count])
        held = min(round(0.2 * rows), _MOST_ROWS) if hold_rows else 0
        away = np.isin(np.arange(rows), generator.permutation(rows)[:held])
        split = FeatureSplit(np.sort(known), np.zeros(0, np.int64), np.sort(new))
        fitted = with_rows(table, ~away)
        if any(kind.type == KindType.REAL and kind != Kind.real() for kind in table.kinds):
            fitted = hide_scales(fitted, split.train)  # unless it was given beforehand, as real:0:1
        here, there = known_and_new(fitted, split)
        outside, both = (
            with_rows(table, away).with_features(part) for part in (split.train, split.meta_test)
        )
        deviation = deviations(table)
        return cls(
            here,
            there,
            tuple(outside.rows),
            ordered(there, "feature", SHOTS, seed),
            ordered(outside, "row", ROW_SHOTS, seed + 1) if held else None,
            ordered(both, "feature", SHOTS, seed, part=0) if held and len(both) else None,
            deviation[split.train],
            deviation[split.meta_test],
        )

    @cached_property
    def own_scales(self) -> bool:
        """Whether real features have scales of their own."""
        return len({kind for kind in self.known.kinds if kind.type == KindType.REAL}) > 1

    @cached_property
    def mixed(self) -> bool:
        """Whether features are of several kinds, scales aside."""
        return (
            len(
                {
                    kind if kind.type != KindType.REAL else KindType.REAL
                    for kind in (*self.known.kinds, *self.new.kinds)
                }
            )
            > 1
        )

    @property
    def shots(self) -> tuple[int, ...]:
        """The shots of new features; a real of a scale of its own is not predictable below 2."""
        real = self.own_scales and (self.new.kinds.types != KindType.BINARY).all()
        return tuple(k for k in self.new_cells.shots if k >= 2 or not real)

    @property
    def one_kind(self) -> str:
        """The kind that the references use for the whole table: binary, rating or real."""
        kind = self.known.kinds[0]
        if self.mixed or kind.type == KindType.REAL:
            return "real"
        return "binary" if kind.type == KindType.BINARY else "rating"

    @cached_property
    def metadata(self) -> tuple[Floats, Floats]:
        """Encoded metadata of known and new features: (known, width), (new, width)."""
        return tuple(part.encoded_metadata().astype(np.float64) for part in (self.known, self.new))  # type: ignore[return-value]

    def context(self, shots: int) -> Context:
        """Return the first ``shots`` observations of every tested new feature, in data units."""
        cells = self.new_cells
        at = cells.seen(shots)
        return Context(
            shots, cells.feature[at], cells.row[at], cells.value[at], self.metadata[1], cells.tested,
            len(self.known.rows),
        )  # fmt: skip

    def problem(self, values: Floats, new_values: Floats, low: float, high: float) -> Problem:
        """Return the problem of the peers, with other values in place of the observed ones."""
        known, cells = self.known, self.new_cells
        return Problem(
            known=csr_matrix((values, (known.row_index, known.feature_index)), shape=known.shape),
            metadata_known=self.metadata[0],
            metadata_new=self.metadata[1],
            kind="binary" if self.one_kind == "binary" else "rating",
            low=low,
            high=high,
            feature=cells.feature,
            row=cells.row,
            value=new_values,
            rank=cells.rank,
            parts=(cells.part,),
        )

    def rehearsal(self, seed: int = 0) -> Trial:
        """Return a trial within the known features and rows, on which references are tuned."""
        return Trial.of(self.known, seed, hold_rows=False)


def with_rows(table: Table, keep: NDArray[np.bool_]) -> Table:
    """Return the table of the rows in the mask ``keep`` (rows,), with all features."""
    there = keep[table.row_index]
    return replace(
        table,
        rows=Names([name for name, kept in zip(table.rows, keep, strict=True) if kept], "row"),
        row_index=(np.cumsum(keep) - 1)[table.row_index[there]],
        feature_index=table.feature_index[there],
        values=table.values[there],
    )


def ordered(table: Table, by: str, ladder: tuple[int, ...], seed: int, part: int | None = None) -> Ordered:
    """Return the observations of a table in a random order within each feature or row."""
    groups = len(table.features) if by == "feature" else len(table.rows)
    features, rows = table.feature_index.astype(np.int64), table.row_index.astype(np.int64)
    values = table.values.astype(float)
    if part is None:
        return Ordered.shuffled(features, rows, values, by, groups, ladder, seed)
    none = np.zeros(len(table), np.int64)
    return Ordered(features, rows, values, features, groups, none, part, ladder)


def deviations(table: Table) -> Floats:
    """Return the standard deviation of the observations of each feature, 1 if they are equal: (features,)."""
    index, count = table.feature_index, len(table.features)
    number = np.maximum(np.bincount(index, minlength=count), 1)
    mean = np.bincount(index, table.values, count) / number
    found = np.sqrt(np.bincount(index, (table.values - mean[index]) ** 2, count) / number)
    return np.where(found > 1e-9 * np.abs(mean), found, 1.0)
