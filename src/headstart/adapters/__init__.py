"""Adapters: anything that maps (context, metadata) to a head."""

from headstart.adapters.chn import CHNConfig, ContextualHypernetwork
from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.adapters.registry import ADAPTERS, adapter_config, adapter_names, build_adapter

__all__ = [
    "ADAPTERS",
    "Adapter",
    "CHNConfig",
    "ContextualHypernetwork",
    "FeatureBatch",
    "Knowledge",
    "adapter_config",
    "adapter_names",
    "build_adapter",
]
