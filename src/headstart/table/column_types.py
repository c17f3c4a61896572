"""The names of all types of metadata columns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headstart.table.columns import (
    CategoryColumn,
    Column,
    CustomColumn,
    DateColumn,
    IgnoredColumn,
    LabelsColumn,
    NumberColumn,
    TextColumn,
    VectorColumn,
)
from headstart.table.network_columns import ImageColumn, TokensColumn

AnyColumn = Annotated[
    NumberColumn
    | DateColumn
    | CategoryColumn
    | LabelsColumn
    | TextColumn
    | VectorColumn
    | CustomColumn
    | TokensColumn
    | ImageColumn
    | IgnoredColumn,
    Field(discriminator="type"),
]

COLUMN_TYPES: dict[str, type[Column]] = {
    "number": NumberColumn,
    "date": DateColumn,
    "category": CategoryColumn,
    "labels": LabelsColumn,
    "text": TextColumn,
    "vector": VectorColumn,
    "custom": CustomColumn,
    "tokens": TokensColumn,
    "image": ImageColumn,
    "ignore": IgnoredColumn,
}
