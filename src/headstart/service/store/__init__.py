"""The durable store of a service: everything that arrived, and the tokens."""

from headstart.service.store.store import Store

__all__ = ["Store"]
