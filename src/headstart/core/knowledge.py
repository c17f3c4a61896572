"""Knowledge: what is known once a backbone is trained and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.likelihood import Likelihood
from headstart.core.states import RowStates
from headstart.crew import crew
from headstart.table.cells import Cells


@dataclass(frozen=True)
class Scales:
    """Centres and scales of the real features that a backbone knows, in units that all share."""

    centre: Tensor  # (real features,)
    scale: Tensor  # (real features,)


@dataclass(frozen=True)
class Knowledge:
    """All that an adapter may learn from before it sees a new feature.

    If several processes train together, each of them has the states and cells of its own rows only.
    """

    states: RowStates  # of every row of the table
    cells: Cells  # rows × the backbone's features, on the models' scale
    heads: Heads  # of the backbone's features
    metadata: Tensor  # (features, metadata width) of the backbone's features
    kinds: Tensor  # (features,): their kinds
    likelihood: Likelihood
    widths: tuple[int, ...] = ()  # how many columns of the encoded metadata each metadata column has
    scales: Scales | None = None  # of the backbone's real features, where each has its own
    new_heads: Heads | None = None  # of the same features as if they were new, for priors to learn from
    # (taught,): the positions of the features that have such heads, where they were sampled. None: all.
    taught: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.widths and self.metadata.shape[1]:  # metadata of unknown origin is one column
            object.__setattr__(self, "widths", (self.metadata.shape[1],))

    @property
    def device(self) -> torch.device:
        """Where it is, and where adapters compute with it."""
        return self.kinds.device

    @cached_property
    def table_shots(self) -> Tensor:
        """How many observations each feature has: (features,)."""
        counts = torch.bincount(self.cells.index, minlength=len(self.kinds))
        return crew().total(counts).to(torch.float32)
