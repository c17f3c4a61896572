"""Inputs of models from a table: its kinds, cells, metadata and batches of features, as models read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Description, FeatureBatch, Scales
from headstart.distributed import process_group
from headstart.linalg.row_sharded import global_count
from headstart.table import Kind, Kinds, Table
from headstart.table.cells import Cells
from headstart.table.kind_inference import resolve_kinds
from headstart.table.kinds import KindType
from headstart.table.margins import Category
from headstart.table.outliers import (
    LEAST_DEVIATION,
    global_row_scales,
    row_scales,
    winsorise,
    winsorise_by_feature,
)


def hide_scales(table: Table, known_features: NDArray[np.int64]) -> Table:
    """Return the table with centres and scales of real features computed from ``known_features`` only.

    Reading a table computes centres and scales from all values, so that the centre of a new feature reveals
    its mean at zero shots. The other real features get the scale common to the known features or, if these
    differ, their median scale.
    """
    real = table.kinds.types == KindType.REAL
    if not real.any():
        return table
    known = np.zeros(len(real), dtype=bool)
    known[known_features] = True
    known_table = table.with_features(real & known)
    kinds = np.array(table.kinds, dtype=object)
    if global_count(len(known_table)):
        index, known_kinds = known_table.feature_index, known_table.kinds
        numbers = known_kinds.numbers(known_table.values, index)
        resolved, _ = resolve_kinds("real", known_table.features, index, numbers)
        all_units = np.array([(kind.first, kind.second) for kind in resolved])
        kinds[real & known] = [
            kind.with_units(*units) for kind, units in zip(known_kinds, all_units.tolist(), strict=True)
        ]
        common = np.median(all_units, axis=0).tolist()
    else:
        common = [0.0, 1.0]
    kinds[real & ~known] = [kind.with_units(*common) for kind in kinds[real & ~known]]
    return replace(table, kinds=Kinds(kinds))


def is_all_binary(table: Table) -> bool:
    """Return whether all features of ``table`` are binary, and none is a column of a category.

    An identity link ranks binary values well, but many probabilities that it predicts are 0: the levels of a
    category need probabilities.
    """
    categories = any(isinstance(margin, Category) for margin in table.kinds.margins)
    return bool((table.kinds.types == KindType.BINARY).all()) and not categories


def modelled_table(table: Table, binary_link: str) -> Table:
    """Return the table with the kinds of the model: with an identity link, binary becomes a rating 0..1.

    This applies only if all features are binary: ratings have a common noise, unlike binary features.
    """
    if binary_link == "logistic" or not is_all_binary(table):
        return table
    return replace(table, kinds=Kinds([Kind.rating(0, 1)] * len(table.features)))


def winsorise_cells(table: Table) -> Cells:
    """Return a table's observations with the outliers of real features winsorised."""
    real = torch.from_numpy(table.kinds.types == KindType.REAL)
    cells = table.cells()
    if not bool(real.any()):
        return cells
    least = torch.full((cells.width,), LEAST_DEVIATION)
    if not process_group().is_single:
        scales = global_row_scales(cells, real)
        return replace(cells, values=winsorise_by_feature(cells.index, cells.values, real, scales, least))
    by_feature = cells.transpose()
    return winsorise(by_feature, real, row_scales(by_feature, real), least).transpose()


def metadata_widths(table: Table) -> tuple[int, ...]:
    """Return the number of encoded columns of each metadata column."""
    return table.schema.widths if table.schema else ()


def describe_features(table: Table) -> Description:
    """Return the metadata of all features of ``table`` without texts and images, which only networks read."""
    numbers, widths = torch.from_numpy(table.encoded_metadata()), metadata_widths(table)
    structures = table.schema.structures if table.schema else ()
    is_level = [isinstance(kind.margin, Category) for kind in table.kinds]
    levels = torch.tensor(is_level) if any(is_level) else None
    if not any(structures):
        return replace(Description.of(numbers, widths), levels=levels)
    parts = torch.split(numbers, list(widths), dim=1)
    plain = [part for part, structure in zip(parts, structures, strict=True) if structure is None]
    plain_numbers = torch.cat([numbers[:, :0], *plain], dim=1)
    return replace(Description.of(plain_numbers, [part.shape[1] for part in plain]), levels=levels)


def relative_scales(kinds: Kinds) -> Scales | None:
    """Return centres and scales of real features relative to their median; None if all are equal."""
    middle, real = kinds.middle_real(), kinds.types == KindType.REAL
    if middle is None:
        return None
    centre, scale = (kinds.offsets[real] - middle.offset) / middle.span, kinds.spans[real] / middle.span
    return Scales(torch.from_numpy(centre), torch.from_numpy(scale))


def feature_batch(table: Table, middle: Kind | None = None) -> FeatureBatch:
    """Return all features of ``table`` as a batch of new features.

    Features of the real kind ``middle`` have an unknown centre and scale.
    """
    units = None
    if middle is not None:
        lengths = torch.tensor(
            [float(kind.shares_units(middle)) for kind in table.kinds], dtype=torch.float64
        )
        units = torch.stack([torch.zeros_like(lengths), lengths], dim=1)
    return FeatureBatch(
        table.cells().transpose(),
        torch.from_numpy(table.encoded_metadata()),
        torch.from_numpy(table.kinds.types),
        units,
        groups=table_groups(table),
    )


def unknown_units(batch: FeatureBatch) -> Tensor:
    """Return the deviations of features whose scale is unknown, and 1 for other features: (features,).

    A feature whose values are all equal has an infinite unit: its errors do not count.
    """
    cells = batch.cells
    values, lines = cells.values.double(), cells.lines
    counts = cells.counts.clamp(min=1)
    sums = values.new_zeros(len(cells), 2).index_add_(0, lines, torch.stack([values, values**2], 1))
    mean, square = (sums / counts[:, None]).T
    variance = (square - mean**2).clamp(min=0)
    units = torch.where(variance > 1e-12 * square, variance.sqrt(), torch.inf)
    return torch.where(batch.unscaled, units, 1.0).float()


def table_groups(table: Table) -> Tensor | None:
    """Return ``FeatureBatch.groups`` of the features of ``table``."""
    groups = table.groups
    return torch.from_numpy(groups) if len(groups) and groups[-1] + 1 < len(groups) else None
