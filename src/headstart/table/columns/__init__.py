"""The types of metadata columns, one per file."""

from typing import Annotated

from pydantic import Field

from headstart.table.columns.category import CategoryColumn
from headstart.table.columns.column import Column
from headstart.table.columns.custom import CustomColumn
from headstart.table.columns.ignored import IgnoredColumn
from headstart.table.columns.labels import LabelsColumn
from headstart.table.columns.number import DateColumn, NumberColumn
from headstart.table.columns.text import TextColumn
from headstart.table.columns.vector import VectorColumn

__all__ = ["COLUMN_TYPES", "AnyColumn", "Column"]

AnyColumn = Annotated[
    NumberColumn
    | DateColumn
    | CategoryColumn
    | LabelsColumn
    | TextColumn
    | VectorColumn
    | CustomColumn
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
    "ignore": IgnoredColumn,
}
