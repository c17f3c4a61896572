"""The tables by name, each with a description in one line."""

from __future__ import annotations

from generality.tables.entry import Entry, described
from generality.tables.files import FILES
from generality.tables.once import ONCE
from generality.tables.rdata import RDATA

TABLES: dict[str, Entry] = {entry.name: entry for entry in (*RDATA, *FILES, *ONCE)}

__all__ = ["TABLES", "Entry", "described"]
