"""Backbones: base models that give a row its code and decoder activation."""

from headstart.backbones.factorisation import Factorisation, FactorisationConfig
from headstart.backbones.feedforward import FeedForward, FeedForwardConfig
from headstart.backbones.heads import Heads
from headstart.backbones.likelihood import Likelihood, LikelihoodConfig
from headstart.backbones.protocol import Backbone, BackboneConfig, RowStates
from headstart.backbones.pvae import PVAE, PVAEConfig
from headstart.backbones.registry import BACKBONES, backbone_config, build_backbone

__all__ = [
    "BACKBONES",
    "PVAE",
    "Backbone",
    "BackboneConfig",
    "Factorisation",
    "FactorisationConfig",
    "FeedForward",
    "FeedForwardConfig",
    "Heads",
    "Likelihood",
    "LikelihoodConfig",
    "PVAEConfig",
    "RowStates",
    "backbone_config",
    "build_backbone",
]
