"""Feature batches: new features with all that is observed of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    unscaled: Tensor | None = None  # (features,): whether centre and scale are yet to be found; None: no
    positions: Tensor | None = None  # (features,): of the backbone's own features, when treated as new

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def shots(self) -> Tensor:
        """How many observations each feature has: (features,)."""
        return self.cells.counts

    def take(self, features: Tensor) -> FeatureBatch:
        """Return these features, in this order."""
        unscaled, positions = (
            None if part is None else part[features] for part in (self.unscaled, self.positions)
        )
        return FeatureBatch(
            self.cells.take(features), self.metadata[features], self.kinds[features], unscaled, positions
        )

    def observing(self, cells: Cells) -> FeatureBatch:
        """Return the same features with other observations."""
        return replace(self, cells=cells)
