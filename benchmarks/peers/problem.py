"""Define the problem of all methods: known features, contexts of new features, and targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from headstart.errors import InputError
from headstart.evaluate.splits import FeatureSplit
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.table.metadata import MetadataSchema
from headstart.training.episodes import random_ranks
from headstart.training.table_inputs import hide_scales

Floats = NDArray[Any]  # of the precision that a library takes
Ints = NDArray[Any]

SHOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
PARTS = (32, 128)  # numbers of observations of a feature before its targets
_FEW = 300  # known features


@dataclass(frozen=True)
class Context:
    """The revealed observations of the new features: (feature, row, value) each."""

    shots: int
    feature: Ints  # (n,)
    row: Ints  # (n,)
    value: Floats  # (n,), data units
    metadata: Floats  # (new, width)
    tested: NDArray[np.bool_]  # (new,): which are asked about at these shots; others have no context
    rows: int

    @property
    def features(self) -> int:
        """Number of new features, with a context or without."""
        return len(self.metadata)

    @cached_property
    def counts(self) -> Ints:
        """Number of observations of each new feature: (new,)."""
        return np.bincount(self.feature, minlength=self.features)

    def matrix(self, values: Floats | None = None) -> csr_matrix:
        """Return new features × rows with the values of the context, or other values in their place."""
        held = self.value if values is None else values
        return csr_matrix((held, (self.feature, self.row)), shape=(self.features, self.rows))


@dataclass(frozen=True)
class Problem:
    """Known features with all their observations, and new ones whose observations have an order.

    ``rank`` is an observation's place in the random order of its feature. A context of k shots holds
    the ranks below k. Part p (32 or 128) tests the features with more than p observations on their
    ranks from p up, at every k up to p: so no target is ever in a context, and targets do not change
    with k.
    """

    known: csr_matrix  # rows × known features, data units
    metadata_known: Floats  # (known, width)
    metadata_new: Floats  # (new, width)
    kind: str  # rating or binary
    low: float
    high: float
    feature: Ints  # (n,): of the new features' observations
    row: Ints  # (n,)
    value: Floats  # (n,)
    rank: Ints  # (n,)
    parts: tuple[int, ...] = PARTS
    tables: tuple[Table, Table] | None = None  # of known and of new features, for methods that take names

    @classmethod
    def of_split(
        cls, table: Table, split: FeatureSplit, seed: int, parts: tuple[int, ...] = PARTS
    ) -> Problem:
        """Build the problem of a split: meta-test features are new, all others known."""
        table = hide_scales(table, split.train)
        kinds = set(table.kinds)
        if len(kinds) > 1 or table.kinds.types[0] == KindType.REAL:
            raise InputError(f"peers take tables of one kind, binary or rating; got {table.kinds.summary()}")
        known, new = known_and_new(table, split)
        kind = table.kinds[0]
        cells = new.cells().transpose()
        rank = random_ranks(cells, torch.Generator().manual_seed(seed)).numpy()
        # Cells hold the models' scale; the values in data units are found by the same sorting.
        order = np.lexsort((new.row_index, new.feature_index))
        return cls(
            known=csr_matrix(
                (known.values.astype(float), (known.row_index, known.feature_index)), shape=known.shape
            ),
            metadata_known=known.encoded_metadata().astype(np.float64),
            metadata_new=new.encoded_metadata().astype(np.float64),
            kind="binary" if kind.type == KindType.BINARY else "rating",
            low=kind.low,
            high=kind.high,
            feature=new.feature_index[order].astype(np.int64),
            row=new.row_index[order].astype(np.int64),
            value=new.values[order].astype(float),
            rank=rank,
            parts=parts,
            tables=(known, new),
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.known.shape[0])

    @property
    def shots(self) -> tuple[int, ...]:
        """The tested numbers of shots."""
        return tuple(k for k in SHOTS if k <= max(self._tested_parts))

    @cached_property
    def counts(self) -> Ints:
        """Number of observations of each new feature: (new,)."""
        return np.bincount(self.feature, minlength=len(self.metadata_new))

    def tested(self, shots: int) -> NDArray[np.bool_]:
        """Return a mask of the new features tested at these shots: (new,)."""
        tested: NDArray[np.bool_] = self.counts > min(p for p in self._tested_parts if p >= shots)
        return tested

    def context(self, shots: int) -> Context:
        """Return the first ``shots`` observations of every new feature tested at these shots."""
        tested = self.tested(shots)
        seen = (self.rank < shots) & tested[self.feature]
        return Context(
            shots, self.feature[seen], self.row[seen], self.value[seen], self.metadata_new, tested, self.rows
        )

    def targets(self, part: int) -> Ints:
        """Return the positions of a part's targets among the observations of new features: (targets,)."""
        return np.flatnonzero((self.rank >= part) & (self.counts > part)[self.feature])

    def rehearsals(self) -> list[Problem]:
        """Return problems within the known features, some treated as new, on which methods are tuned.

        One of six parts is new; if features are few, each part in turn, to reduce the influence of chance.
        """
        every = self.folds(6)
        return every if self.known.shape[1] < _FEW else every[:1]

    def folds(self, number: int, seed: int = 0) -> list[Problem]:
        """Return rehearsals in which every known feature is new exactly once."""
        order = np.random.default_rng(seed).permutation(self.known.shape[1])
        return [self.holding_out(part, seed) for part in np.array_split(order, number)]

    def holding_out(self, features: Ints, seed: int) -> Problem:
        """Treat these known features as new."""
        features = np.sort(features)
        rest = np.setdiff1d(np.arange(self.known.shape[1]), features)
        columns = self.known[:, features].tocsc()
        columns.sort_indices()
        counts = np.diff(columns.indptr)
        cells = Cells(
            torch.from_numpy(columns.indptr.astype(np.int64)),
            torch.from_numpy(columns.indices.astype(np.int64)),
            torch.zeros(columns.nnz),
            self.rows,
        )
        return Problem(
            known=self.known[:, rest],
            metadata_known=self.metadata_known[rest],
            metadata_new=self.metadata_known[features],
            kind=self.kind,
            low=self.low,
            high=self.high,
            feature=np.repeat(np.arange(len(features)), counts),
            row=columns.indices.astype(np.int64),
            value=columns.data,
            rank=random_ranks(cells, torch.Generator().manual_seed(seed)).numpy(),
            parts=self.parts,
        )

    def including(self, context: Context) -> Problem:
        """Return the problem with contexts among the known features, for methods that are trained again."""
        cells = self.known.tocoo()
        width = self.known.shape[1]
        joined = csr_matrix(
            (
                np.concatenate([cells.data, context.value]),
                (
                    np.concatenate([cells.row, context.row]),
                    np.concatenate([cells.col, width + context.feature]),
                ),
            ),
            shape=(self.rows, width + context.features),
        )
        metadata = np.concatenate([self.metadata_known, context.metadata])
        none = np.zeros(0, np.int64)
        return Problem(joined, metadata, self.metadata_new[:0], self.kind, self.low, self.high,
                       none, none, np.zeros(0), none, self.parts)  # fmt: skip

    @property
    def _tested_parts(self) -> list[int]:
        there = [part for part in self.parts if (self.counts > part).any()]
        if not there:
            raise InputError(
                f"no new feature has more than {min(self.parts)} observations: nothing to test on"
            )
        return there


def known_and_new(table: Table, split: FeatureSplit) -> tuple[Table, Table]:
    """Return the tables of known and of new features, with metadata encoded by the known ones."""
    known = table.with_features(np.union1d(split.train, split.meta_train))
    new = table.with_features(split.meta_test)
    if known.metadata is None or known.schema is None:
        return known, new
    types = {column.name: column.spec for column in known.schema.columns}
    schema = MetadataSchema.fit(known.metadata, types, known.encoders)
    return replace(known, schema=schema), replace(new, schema=schema)
