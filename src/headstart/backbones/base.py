"""The interface of backbones, and functions that find and build a backbone by its name."""

# ruff: noqa: ARG002 - the methods of missing capabilities raise without reading their arguments

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NoReturn, Self, cast

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from headstart.config import Config
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import Description, Heads, OneRow, OneState, RowParts, RowPrior, RowStates
from headstart.errors import UnsupportedError
from headstart.linalg.array_ops import Array
from headstart.linalg.ragged import PER_NUMBER
from headstart.linalg.row_sharded import global_unique
from headstart.parallel import parallel_map
from headstart.registry import Registry
from headstart.table.cells import Cells


class BackboneConfig(Config):
    """Settings of every backbone; a subclass declares ``name`` with the backbone's name as its only value."""

    name: str
    likelihood: LikelihoodConfig = LikelihoodConfig()

    def resolved(self, kinds: Tensor, rows: int | None = None, observations: int = 0) -> Self:
        """Return the settings with the defaults that depend on the table filled in.

        ``kinds`` are the kinds of its features; ``rows`` and ``observations`` are numbers, None: unknown.
        """
        return self

    @property
    def estimates_noise_by_feature(self) -> bool | None:
        """Whether each real feature has a noise of its own; None: the judge decides."""
        return False

    def with_noise_by_feature(self) -> Self:
        """Return the settings in which each real feature has a noise of its own."""
        raise UnsupportedError(f"the backbone {self.name!r} does not estimate a noise of each feature")


class Backbone(nn.Module, ABC):
    """Base model over a fixed set of features.

    A subclass implements ``batch_states``, has one head per feature, and trains by gradient (``loss``) or by
    sweeps (``train_by_sweeps``), according to ``trained_by``. Values are on the models' scale.

    Class attributes declare optional capabilities. A subclass that sets one of them to True implements the
    methods in its comment; without the capability these methods raise ``UnsupportedError``.
    """

    config_type: ClassVar[type[BackboneConfig]]
    trained_by: ClassVar[Literal["gradient", "sweeps"]]  # loss, or train_by_sweeps
    reads_any_head: ClassVar[bool] = False  # prior_means, states_from_heads: states from any features' heads
    reads_single_rows: ClassVar[bool] = False  # state_of_one: states_from_heads for one row in numpy
    explainable: ClassVar[bool] = False  # row_parts: a row's activation as a sum over its observations
    sharded: ClassVar[bool] = False  # training by several processes, each with some of the rows
    supports_clicks: ClassVar[bool] = False  # cells without a click are read as weak zeros
    supports_weights: ClassVar[bool] = False  # reads Cells.weights: old observations count less
    config: BackboneConfig
    weight: nn.Parameter  # (features, width): the heads' w
    bias: nn.Parameter  # (features,): the heads' b
    sweeps: int  # the number of sweeps of train_by_sweeps

    def __init__(self, config: BackboneConfig, kinds: Tensor, grid: Tensor) -> None:
        super().__init__()
        self.config = config
        self.likelihood = Likelihood(config.likelihood)
        self.kinds: Tensor
        self.register_buffer("kinds", kinds)  # (features,): the kind of each feature
        self.grid: Tensor
        self.register_buffer("grid", grid)  # the distinct training values, or empty: see ``value_grid``

    @property
    def features(self) -> int:
        """Number of features of the backbone."""
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

    # -- row states -------------------------------------------------------------------------------

    @abstractmethod
    def batch_states(self, cells: Cells) -> RowStates:
        """Compute the states of a batch of rows from their observations; a row can be empty."""

    def batch_function(self) -> Callable[[Cells], RowStates]:
        """Return ``batch_states`` for several batches, which share what does not depend on the rows."""
        return self.batch_states

    @torch.no_grad()
    def states(self, cells: Cells, hidden: Tensor | None = None, batch: int | None = None) -> RowStates:
        """Compute the states of any number of rows in batches of ``batch`` rows.

        The features in the mask ``hidden`` (features,) are ignored.
        """
        # Each batch has a constant cost that grows with the features: use at most about 256 batches.
        batch_states = self.batch_function()
        batch = batch or min(2**14, max(1024, len(cells) // 256))
        starts = range(0, len(cells), batch)

        def states_from(start: int) -> RowStates:
            block = cells.block(start, min(len(cells), start + batch))
            if hidden is not None:
                block = block.keep(~hidden[block.index])
            return batch_states(block)

        states: RowStates | None = None
        memory = PER_NUMBER * batch * (self.activation_size + 1) ** 2
        for start, part in zip(starts, parallel_map(states_from, starts, each_takes=memory), strict=True):
            if len(part) == len(cells):
                return part
            states = part.room_for(len(cells)) if states is None else states
            states.put(start, part)
        return batch_states(cells) if states is None else states

    # -- optional capabilities --------------------------------------------------------------------

    def loss(self, cells: Cells, generator: torch.Generator) -> Tensor:
        """Compute the training loss per row of a batch of rows, with random numbers from ``generator``."""
        self._cannot("be trained by gradient")

    def train_by_sweeps(
        self,
        cells: Cells,
        description: Description,
        generator: torch.Generator,
    ) -> Iterator[float]:
        """Train on the observations ``cells`` (rows × features) and the features' metadata ``description``.

        Each of the ``sweeps`` updates every parameter once and yields the standard deviation of the
        prediction errors, 0 if unknown.
        """
        self._cannot("be trained by sweeps")

    def train_resumably(
        self,
        cells: Cells,
        description: Description,
        generator: torch.Generator,
        checkpoint: Path,
        seconds: float,
    ) -> Iterator[float]:
        """Train by sweeps, and save progress to the file ``checkpoint`` every ``seconds``.

        By default nothing is saved.
        """
        yield from self.train_by_sweeps(cells, description, generator)

    def prior_means(self, cells: Cells) -> Tensor:
        """Compute the prior means of rows' activations, without their values: (rows, width).

        They can depend on *which* features a row observed. The prior covariance is the identity.
        """
        self._cannot("compute states from other heads than its own")

    def states_from_heads(
        self,
        cells: Cells,
        heads: Heads,
        kinds: Tensor,
        backbone_positions: Tensor,
        row_prior: RowPrior | None = None,
    ) -> RowStates:
        """Compute the states of rows from ``heads`` instead of the backbone's own.

        ``states(cells)`` equals ``states_from_heads`` with the backbone's own heads.

        Parameters
        ----------
        cells : Cells
            One line per row; its ``index`` contains positions in ``heads``.
        heads : Heads
            Heads with their covariance and noise.
        kinds : Tensor
            (heads,): their kinds.
        backbone_positions : Tensor
            (heads,): the position of each head's feature among the backbone's features, -1 for others.
        row_prior : RowPrior, optional
            The prior of these rows given their metadata. Its covariance replaces the backbone's.
        """
        self._cannot("compute states from other heads than its own")

    def state_of_one(
        self,
        row: OneRow,
        known: Array,
        row_prior: tuple[Array, Array] | None = None,
    ) -> OneState:
        """Compute the state of a single row in numpy: ``states_from_heads`` without the overhead of tensors.

        ``known`` holds the positions of the backbone's own features that the row observed; ``row_prior`` is
        the shift and the covariance of a ``RowPrior``.
        """
        self._cannot("compute the state of a single row")

    def row_parts(
        self,
        cells: Cells,
        heads: Heads,
        kinds: Tensor,
        backbone_positions: Tensor,
        row_prior: RowPrior | None = None,
    ) -> RowParts:
        """Decompose the activation of one row into contributions; parameters as in ``states_from_heads``."""
        self._cannot("explain a row")

    def _cannot(self, action: str) -> NoReturn:
        raise UnsupportedError(f"the backbone {self.config.name!r} cannot {action}")


BACKBONES: Registry[Backbone] = Registry("backbone", "headstart.backbones")

register_backbone = BACKBONES.register

LARGEST_GRID = 32  # distinct values


def backbone_config(choice: object) -> BackboneConfig:
    """Return the settings of a backbone, given its name, settings or their saved form.

    >>> backbone_config("pvae").latent
    64
    >>> backbone_config("pvea")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown backbone 'pvea'; did you mean 'pvae'?
    """
    return cast(BackboneConfig, BACKBONES.settings(choice))


def build_backbone(config: BackboneConfig, kinds: Tensor, grid: Tensor) -> Backbone:
    """Build an untrained backbone for features of these ``kinds``, with all settings filled in."""
    return BACKBONES.part_of(config)(config.resolved(kinds), kinds, grid)


def value_grid(cells: Cells) -> Tensor:
    """Return the distinct values if there are at most ``LARGEST_GRID``, otherwise an empty tensor."""
    grid = global_unique(cells.values, LARGEST_GRID)
    return grid if len(grid) <= LARGEST_GRID else grid[:0]


AnyBackbone = Annotated[SerializeAsAny[BackboneConfig], BeforeValidator(backbone_config)]
"""The type of a setting that holds the settings of any backbone."""
