"""What a backbone is: a frozen model that says what it knows of a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from headstart.backbones.heads import Heads
from headstart.backbones.likelihood import Likelihood, LikelihoodConfig
from headstart.config import Config
from headstart.table.cells import Cells


class BackboneConfig(Config):
    """Settings every backbone has."""

    likelihood: LikelihoodConfig = LikelihoodConfig()


@dataclass(frozen=True)
class RowStates:
    """What a backbone knows of some rows."""

    code: Tensor  # (rows, latent): what the hypernetwork reads
    code_std: Tensor  # (rows, latent): how sure the backbone is of the code
    activation: Tensor  # (rows, width): what heads read
    noise: Tensor | None = None  # (rows,): how noisy a row's observations are, where an adapter says

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Tensor) -> RowStates:
        """Return the states of these rows."""
        noise = None if self.noise is None else self.noise[rows]
        return RowStates(self.code[rows], self.code_std[rows], self.activation[rows], noise)

    @classmethod
    def concatenate(cls, parts: list[RowStates]) -> RowStates:
        """Join batches of rows into one."""
        noises = [part.noise for part in parts if part.noise is not None]
        return cls(
            torch.cat([part.code for part in parts]),
            torch.cat([part.code_std for part in parts]),
            torch.cat([part.activation for part in parts]),
            torch.cat(noises) if len(noises) == len(parts) else None,
        )


class Backbone(nn.Module, ABC):
    """A base model over a fixed set of features.

    Subclasses implement ``states`` and own a head a feature. How they are trained is one of two ways:
    by gradient (``TrainedBackbone``) or by sweeps (``SweptBackbone``). Values come in on the models'
    scale. Only ``encode`` and ``heads`` are used once the backbone is frozen.
    """

    name: ClassVar[str]
    config: BackboneConfig
    weight: nn.Parameter  # (features, width): the heads' w
    bias: nn.Parameter  # (features,): the heads' b

    def __init__(self, config: BackboneConfig, codes: Tensor, grid: Tensor) -> None:
        super().__init__()
        self.config = config
        self.likelihood = Likelihood(config.likelihood)
        self.codes: Tensor
        self.register_buffer("codes", codes)  # (features,): the kind of each
        self.grid: Tensor
        self.register_buffer("grid", grid)  # the few values that occur in training, or none

    @property
    def features(self) -> int:
        """How many features the backbone was built for."""
        return len(self.codes)

    @property
    @abstractmethod
    def code_size(self) -> int:
        """Length of a row's code."""

    @property
    def activation_size(self) -> int:
        """Length of a row's decoder activation."""
        return int(self.weight.shape[1])

    @property
    def heads(self) -> Heads:
        """The heads of the backbone's own features."""
        return Heads(self.weight, self.bias)

    @abstractmethod
    def states(self, cells: Cells) -> RowStates:
        """What is known of a batch of rows from their observations; a row may have none."""

    @torch.no_grad()
    def encode(self, cells: Cells, hidden: Tensor | None = None, batch: int = 1024) -> RowStates:
        """The states of any number of rows; features in the mask ``hidden`` (features,) are left out."""
        if hidden is not None:
            cells = cells.keep(~hidden[cells.index])
        every = torch.arange(len(cells))
        if len(every) == 0:
            return self.states(cells)
        return RowStates.concatenate([self.states(cells.take(part)) for part in torch.split(every, batch)])


class TrainedBackbone(Backbone):
    """A backbone that descends the gradient of a loss."""

    @abstractmethod
    def loss(self, cells: Cells, generator: torch.Generator) -> Tensor:
        """The training loss of a batch of rows, per row; randomness comes from ``generator`` only."""


class SweptBackbone(Backbone):
    """A backbone whose parameters have closed forms given each other: some sweeps over them suffice."""

    sweeps: int

    @abstractmethod
    def begin(self, cells: Cells, metadata: Tensor, generator: torch.Generator) -> None:
        """Start anew on rows × features, the latter with their metadata (features, metadata width)."""

    @abstractmethod
    def sweep(self, cells: Cells) -> float:
        """Update every parameter once; returns how far off predictions are, 0 where unknown."""

    @abstractmethod
    def end(self) -> None:
        """Forget what only training needs."""


def mlp(sizes: list[int], *, last: bool = False) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between; after the last one too if ``last``."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))
