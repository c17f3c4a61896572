"""How extreme rows are, judged by what is predicted of them for some known features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.predictive import grid_logits
from headstart.core.states import RowStates
from headstart.table.kinds import KindType

_FEATURES, _ROWS = 64, 4096  # at most so many features are looked at, and rows to learn what is usual


@dataclass(frozen=True)
class Landmarks:
    """Some known real features, and what outputs they usually have."""

    heads: Heads
    middle: Tensor  # (features,): the median output
    deviation: Tensor  # (features,): the median distance from it

    @classmethod
    def of(cls, knowledge: Knowledge) -> Landmarks:
        """The most observed real features of the backbone."""
        real = torch.nonzero(knowledge.kinds == KindType.REAL)[:, 0]
        order = torch.argsort(knowledge.table_shots[real], descending=True, stable=True)
        heads = knowledge.heads.take(real[order[:_FEATURES]])
        outputs = grid_logits(heads, knowledge.states.take(slice(_ROWS)))
        middle = outputs.median(dim=0).values
        return cls(heads, middle, (outputs - middle).abs().median(dim=0).values)

    def extents(self, states: RowStates) -> Tensor:
        """How many times as far from the middle as usual each row lies in most features: (rows,), at least 1.

        Where a new feature has a value that is far off too, this is what the row is like, and no error.
        """
        width = self.heads.weight.shape[1]  # an adapter may have added activations of its own
        own = RowStates(states.code, states.code_std, states.activation[:, :width])
        distance = (grid_logits(self.heads, own) - self.middle).abs()
        relative = distance / self.deviation.clamp(min=1e-12)
        return relative.median(dim=1).values.clamp(min=1.0)
