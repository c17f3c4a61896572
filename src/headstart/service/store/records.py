"""What a store holds of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Stored:
    """A feature or row that was added: its metadata as given, its kind as said, and when it came."""

    name: str
    at: datetime
    metadata: dict[str, Any]
    kind: str | None = None


@dataclass(frozen=True)
class Token:
    """What is known of an API token; never its secret."""

    id: str
    name: str
    digest: bytes
    scopes: frozenset[str]
    at: datetime
    revoked: datetime | None = None
