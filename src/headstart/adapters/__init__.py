"""Adapters: classes that map the context and metadata of a new feature to its head."""

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
