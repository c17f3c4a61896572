"""A typed client of a service (extra ``service``)."""

from headstart.client.client import Client
from headstart.client.errors import ServiceError

__all__ = ["Client", "ServiceError"]
