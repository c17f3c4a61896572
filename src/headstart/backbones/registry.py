"""The backbones there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headstart.backbones.factorisation import Factorisation, FactorisationConfig
from headstart.backbones.feedforward import FeedForward, FeedForwardConfig
from headstart.backbones.protocol import Backbone, BackboneConfig
from headstart.backbones.pvae import PVAE, PVAEConfig
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.table.cells import Cells

BACKBONES: dict[str, tuple[type[BackboneConfig], type[Backbone]]] = {
    Factorisation.name: (FactorisationConfig, Factorisation),
    PVAE.name: (PVAEConfig, PVAE),
    FeedForward.name: (FeedForwardConfig, FeedForward),
}

LARGEST_GRID = 32


def backbone_config(choice: str | BackboneConfig | dict[str, Any]) -> BackboneConfig:
    """Turn a name, settings or their saved form into settings.

    >>> backbone_config("pvae").latent
    64
    >>> backbone_config("pvea")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown backbone 'pvea'; did you mean 'pvae'?
    """
    if isinstance(choice, BackboneConfig):
        return choice
    if not isinstance(choice, (str, Mapping)):
        raise InputError(f"a backbone is chosen by its name or settings; got {choice!r}")
    settings = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = settings.get("name")
    if not isinstance(name, str):
        raise InputError(f"a backbone is chosen by its name or settings; got {choice!r}")
    if name not in BACKBONES:
        raise UnknownNameError(f"unknown backbone {name!r}{did_you_mean(name, BACKBONES)}")
    return BACKBONES[name][0](**settings)


def build_backbone(config: BackboneConfig, codes: Tensor, grid: Tensor) -> Backbone:
    """Make an untrained backbone for features of these kinds."""
    _, kind = BACKBONES[config.name]  # type: ignore[attr-defined]
    return kind(config, codes, grid)


def value_grid(cells: Cells) -> Tensor:
    """The distinct values, if they are few enough to table; otherwise none."""
    grid: Tensor = torch.unique(cells.values)
    return grid if len(grid) <= LARGEST_GRID else grid[:0]
