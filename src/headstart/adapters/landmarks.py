"""How extreme rows are, judged by what is predicted of them for some known features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.core.knowledge import Knowledge
from headstart.crew import crew
from headstart.table.kinds import KindType

_FEATURES, _ROWS = 64, 4096  # at most so many features are looked at, and rows to learn what is usual


@dataclass(frozen=True)
class Landmarks:
    """Some known real features, and what outputs they usually have."""

    weight: Tensor  # (features, width), in double precision
    bias: Tensor  # (features,)
    middle: Tensor  # (features,): the median output
    deviation: Tensor  # (features,): the median distance from it

    @classmethod
    def of(cls, knowledge: Knowledge) -> Landmarks:
        """The most observed real features of the backbone."""
        real = torch.nonzero(knowledge.kinds == KindType.REAL)[:, 0]
        order = torch.argsort(knowledge.table_shots[real], descending=True, stable=True)
        heads = knowledge.heads.take(real[order[:_FEATURES]])
        weight, bias = heads.weight.detach().double(), heads.bias.detach().double()
        start, _ = crew().span(len(knowledge.states))
        first = crew().gathered(knowledge.states.activation[: max(0, _ROWS - start)])
        outputs = torch.addmm(bias, first.double(), weight.T)
        middle = outputs.median(dim=0).values
        return cls(weight, bias, middle, (outputs - middle).abs().median(dim=0).values)

    def extents(self, activation: Tensor) -> Tensor:
        """How many times as far from the middle as usual each row lies in most features: (rows,), at least 1.

        Where a new feature has a value that is far off too, this is what the row is like, and no error.
        """
        own = activation[:, : self.weight.shape[1]].double()  # an adapter may have added some of its own
        distance = (torch.addmm(self.bias, own, self.weight.T) - self.middle).abs()
        relative = distance / self.deviation.clamp(min=1e-12)
        return relative.median(dim=1).values.clamp(min=1.0)
