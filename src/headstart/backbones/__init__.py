"""Backbones: base models that give a row its code and activation. Every module here is found by itself."""

from headstart.backbones.base import (
    BACKBONES,
    Backbone,
    BackboneConfig,
    OpenBackbone,
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
    "OpenBackbone",
    "SweptBackbone",
    "TrainedBackbone",
    "backbone_config",
    "build_backbone",
    "register_backbone",
]
