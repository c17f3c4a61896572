"""The table of observations, its kinds and its metadata."""

from headstart.table.cells import Cells
from headstart.table.kinds import Kind, Kinds
from headstart.table.metadata import MetadataSchema
from headstart.table.names import Names
from headstart.table.table import Table

__all__ = ["Cells", "Kind", "Kinds", "MetadataSchema", "Names", "Table"]
