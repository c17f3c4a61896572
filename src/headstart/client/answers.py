"""What a service answers, as the client gives it."""

from __future__ import annotations

from typing import TypedDict


class Cell(TypedDict):
    """The prediction of one row and feature."""

    row: str
    feature: str
    mean: float
    std: float
    low: float
    high: float


class RankedFeature(TypedDict):
    """A feature in a ranking."""

    feature: str
    score: float
    mean: float
    std: float
    low: float
    high: float


class RankedRow(TypedDict):
    """A row in a ranking."""

    row: str
    score: float
    mean: float
    std: float
    low: float
    high: float


class FeatureLine(TypedDict):
    """A feature in a list."""

    name: str
    kind: str
    shots: int
    uncertainty: float | None
    added: str | None


class FeaturePage(TypedDict):
    """A page of a list of features."""

    model: str
    number: int
    total: int
    offset: int
    features: list[FeatureLine]


class Taken(TypedDict):
    """What is said of a change that is committed; ``number`` is that of the change."""

    model: str
    number: int
