"""Define what a backbone is, and find backbones by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Self, cast

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from headstart.config import Config
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import Description, Heads, RowBelief, RowStates
from headstart.distributed import process_group
from headstart.linalg.ragged import PER_NUMBER
from headstart.parallel import parallel_map
from headstart.registry import Registry
from headstart.table.cells import Cells


class BackboneConfig(Config):
    """Settings every backbone has; a subclass gives ``name`` the backbone's name as its only value."""

    name: str
    likelihood: LikelihoodConfig = LikelihoodConfig()

    def resolved(self, kinds: Tensor) -> Self:  # noqa: ARG002
        """Return the settings with every value filled in that depends on the features, of these kinds."""
        return self


class Backbone(nn.Module, ABC):
    """A base model over a fixed set of features.

    Subclasses implement ``batch_states`` and own one head per feature. They are trained in one of two
    ways: by gradient (``TrainedBackbone``) or by sweeps (``SweptBackbone``). Values come in on the models'
    scale. Only ``states`` and ``heads`` are used once the backbone is frozen.
    """

    config_type: ClassVar[type[BackboneConfig]]
    heads_read_code: ClassVar[bool] = False  # whether the activation is the leading part of the code
    config: BackboneConfig
    weight: nn.Parameter  # (features, width): the heads' w
    bias: nn.Parameter  # (features,): the heads' b

    def __init__(self, config: BackboneConfig, kinds: Tensor, grid: Tensor) -> None:
        super().__init__()
        self.config = config
        self.likelihood = Likelihood(config.likelihood)
        self.kinds: Tensor
        self.register_buffer("kinds", kinds)  # (features,): the kind of each
        self.grid: Tensor
        self.register_buffer("grid", grid)  # the few values that occur in training, or none

    @property
    def features(self) -> int:
        """How many features the backbone was built for."""
        return len(self.kinds)

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
    def batch_states(self, cells: Cells) -> RowStates:
        """What is known of a batch of rows from their observations; a row may have none."""

    @torch.no_grad()
    def states(self, cells: Cells, hidden: Tensor | None = None, batch: int | None = None) -> RowStates:
        """The states of any number of rows; features in the mask ``hidden`` (features,) are left out."""
        # What a batch needs of all features costs the same whatever its size: there are at most some 256.
        batch = batch or min(2**14, max(1024, len(cells) // 256))
        starts = range(0, len(cells), batch)

        def states_from(start: int) -> RowStates:
            block = cells.block(start, min(len(cells), start + batch))
            if hidden is not None:
                block = block.keep(~hidden[block.index])
            return self.batch_states(block)

        found: RowStates | None = None
        held = PER_NUMBER * batch * (self.activation_size + 1) ** 2
        for start, part in zip(starts, parallel_map(states_from, starts, each_takes=held), strict=True):
            if len(part) == len(cells):
                return part
            found = part.room_for(len(cells)) if found is None else found
            found.put(start, part)
        return self.batch_states(cells) if found is None else found


class TrainedBackbone(Backbone):
    """A backbone that descends the gradient of a loss."""

    @abstractmethod
    def loss(self, cells: Cells, generator: torch.Generator) -> Tensor:
        """The training loss of a batch of rows, per row; randomness comes from ``generator`` only."""


class SweptBackbone(Backbone):
    """A backbone whose parameters have closed forms given each other: some sweeps over them suffice."""

    sweeps: int

    @abstractmethod
    def train_by_sweeps(
        self, cells: Cells, description: Description, generator: torch.Generator
    ) -> Iterator[float]:
        """Train on rows × features, the latter with their metadata.

        Yields after each of the ``sweeps``, every parameter updated once, how far predictions are off:
        a standard deviation, 0 where unknown.
        """

    def train_resumably(
        self,
        cells: Cells,
        description: Description,
        generator: torch.Generator,
        checkpoint: Path,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> Iterator[float]:
        """The same, but keeping what is reached in the file ``checkpoint`` every so many ``seconds``.

        A backbone whose sweeps take little time need not keep anything.
        """
        yield from self.train_by_sweeps(cells, description, generator)


class OpenBackbone(Backbone):
    """A backbone that can describe rows by any heads, also by those of features it was not built for.

    The model then lets a row's state follow what the row observes of any feature. A backbone that is not
    open describes rows by its own features alone.
    """

    @abstractmethod
    def prior_means(self, cells: Cells) -> Tensor:
        """What is believed of rows' activations before the values of their observations: (rows, width).

        The prior covariance is the identity.
        """

    @abstractmethod
    def states_by(
        self, cells: Cells, heads: Heads, kinds: Tensor, own: Tensor, belief: RowBelief | None = None
    ) -> RowStates:
        """The states of rows whose observations have these heads instead of the backbone's own.

        ``cells`` has one line per row, and its ``index`` points at ``heads``, which know their covariance
        and noise; ``kinds`` (heads,) are their kinds. ``own`` (heads,) is the position of each among the
        backbone's features, -1 for a feature that is not among them. ``states(cells)`` is the same as
        ``states_by`` with the backbone's own heads. ``belief`` is what else is known of these rows.
        """


BACKBONES: Registry[Backbone] = Registry("backbone", "headstart.backbones")

register_backbone = BACKBONES.register

LARGEST_GRID = 32


def backbone_config(choice: object) -> BackboneConfig:
    """Turn a name, settings or their saved form into settings.

    >>> backbone_config("pvae").latent
    64
    >>> backbone_config("pvea")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown backbone 'pvea'; did you mean 'pvae'?
    """
    return cast(BackboneConfig, BACKBONES.settings(choice))


def build_backbone(config: BackboneConfig, kinds: Tensor, grid: Tensor) -> Backbone:
    """Make an untrained backbone for features of these kinds, with all settings filled in."""
    return BACKBONES.part_of(config)(config.resolved(kinds), kinds, grid)


def value_grid(cells: Cells) -> Tensor:
    """The distinct values, if they are few enough to be tabled; otherwise none."""
    grid: Tensor = torch.unique(cells.values)
    if not process_group().is_single:
        grid = torch.unique(process_group().all_gather(grid[: LARGEST_GRID + 1]))
    return grid if len(grid) <= LARGEST_GRID else grid[:0]


AnyBackbone = Annotated[SerializeAsAny[BackboneConfig], BeforeValidator(backbone_config)]

"""The type of a setting that holds the settings of any backbone."""
