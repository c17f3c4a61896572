"""Backbones: base models that compute a row's code and activation. The registry imports every module here."""

from headstart.backbones.base import (
    BACKBONES,
    Backbone,
    BackboneConfig,
    SweptBackbone,
    TrainedBackbone,
    backbone_config,
    build_backbone,
    register_backbone,
)

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneConfig",
    "SweptBackbone",
    "TrainedBackbone",
    "backbone_config",
    "build_backbone",
    "register_backbone",
]
