"""Adapters: anything that maps (context, metadata) to a head."""

from headstart.adapters.bayes import BayesConfig, BayesHead
from headstart.adapters.chn import CHNConfig, ContextualHypernetwork
from headstart.adapters.chn_bayes import CHNBayes, CHNBayesConfig
from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge, StreamingAdapter
from headstart.adapters.registry import ADAPTERS, adapter_config, adapter_names, build_adapter

__all__ = [
    "ADAPTERS",
    "Adapter",
    "BayesConfig",
    "BayesHead",
    "CHNBayes",
    "CHNBayesConfig",
    "CHNConfig",
    "ContextualHypernetwork",
    "FeatureBatch",
    "Knowledge",
    "StreamingAdapter",
    "adapter_config",
    "adapter_names",
    "build_adapter",
]
