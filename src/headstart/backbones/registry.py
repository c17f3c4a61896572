"""The backbones by name."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor

from headstart.backbones.protocol import Backbone, BackboneConfig
from headstart.crew import crew
from headstart.registry import Registry
from headstart.table.cells import Cells

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
    if not crew().alone:
        grid = torch.unique(crew().gathered(grid[: LARGEST_GRID + 1]))
    return grid if len(grid) <= LARGEST_GRID else grid[:0]


AnyBackbone = Annotated[SerializeAsAny[BackboneConfig], BeforeValidator(backbone_config)]
"""The type of a setting that holds the settings of any backbone."""
