"""Values of reals that are far off, before heads are made from them."""

from __future__ import annotations

import torch

from headstart.adapters.landmarks import Landmarks
from headstart.core.batch import FeatureBatch
from headstart.core.knowledge import Scales
from headstart.core.states import RowStates
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION, tame_outliers


def tamed(
    batch: FeatureBatch, states: RowStates, landmarks: Landmarks, scales: Scales | None
) -> FeatureBatch:
    """Bring back reals that are far off, unless their row is as far off in most known features."""
    rows, place = torch.unique(batch.cells.index, return_inverse=True)
    extent = landmarks.extents(states.activation.index_select(0, rows))[place]
    least = torch.full((len(batch),), LEAST_DEVIATION, dtype=torch.float64)
    if batch.units is not None and scales is not None:  # scales that are yet to be found
        smallest = scales.scale.min() / batch.units[:, 1].clamp(min=1e-300)
        least = torch.where(batch.unscaled, LEAST_DEVIATION * smallest, least)
    return batch.observing(tame_outliers(batch.cells, batch.kinds == KindType.REAL, extent, least))
