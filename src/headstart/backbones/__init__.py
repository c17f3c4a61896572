"""Backbones: base models that compute the code and the activation of each row."""

from headstart.backbones.base import (
    BACKBONES,
    Backbone,
    BackboneConfig,
    backbone_config,
    build_backbone,
    register_backbone,
)

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneConfig",
    "backbone_config",
    "build_backbone",
    "register_backbone",
]
