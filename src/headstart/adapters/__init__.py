"""Adapters: anything that maps (context, metadata) to a head. Every module here is found by itself."""

from headstart.adapters.base import (
    ADAPTERS,
    Adapter,
    AdapterConfig,
    adapter_config,
    adapter_names,
    build_adapter,
    register_adapter,
)

__all__ = [
    "ADAPTERS",
    "Adapter",
    "AdapterConfig",
    "adapter_config",
    "adapter_names",
    "build_adapter",
    "register_adapter",
]
