"""Feature batches: new features with all that is observed of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.table.cells import Cells


@dataclass(frozen=True)
class FeatureBatch:
    """Features treated as new: their contexts, metadata and kinds.

    ``cells`` has one line per feature, with any number of shots each; its ``index`` points at rows of
    the ``RowStates`` that go with the batch.
    """

    cells: Cells
    metadata: Tensor  # (features, metadata width); width 0 where there is none
    kinds: Tensor  # (features,): the kind of each
    # (features, 2): where a feature's zero lies, and how long its one is, in units that all real features
    # share, if its own centre and scale are yet to be found; 0 and 0 if they are known. None: all known.
    units: Tensor | None = None
    positions: Tensor | None = None  # (features,): of the backbone's own features, when treated as new
    known: Tensor | None = (
        None  # (features,): of the backbone's own, taken as such; −1 for new. None: all new
    )

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def unscaled(self) -> Tensor:
        """Whether each feature's own centre and scale are yet to be found: (features,)."""
        return torch.zeros_like(self.kinds, dtype=torch.bool) if self.units is None else self.units[:, 1] > 0

    @property
    def shots(self) -> Tensor:
        """How many observations each feature has: (features,)."""
        return self.cells.counts

    def take(self, features: Tensor, cells: Cells | None = None) -> FeatureBatch:
        """Return these features, in this order, with all that is observed of them or with ``cells``."""
        optional = (self.units, self.positions, self.known)
        return FeatureBatch(
            self.cells.take(features) if cells is None else cells,
            self.metadata[features],
            self.kinds[features],
            *(None if part is None else part[features] for part in optional),
        )

    def observing(self, cells: Cells) -> FeatureBatch:
        """Return the same features with other observations."""
        return replace(self, cells=cells)
