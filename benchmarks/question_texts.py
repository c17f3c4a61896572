"""Read the texts of Eedi's questions, as text recognition read them from their images."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headstart.datasets import data_folder
from headstart.table import MetadataSchema, Table


def question_texts(table: Table, data: Path | None = None) -> list[str | None]:
    """Return the text of each feature of the e-learning table, from the data folder ``data``."""
    path = data_folder(data) / "eedi" / "metadata" / "question_text.csv"
    with path.open(encoding="utf-8", newline="") as file:
        texts = {line["QuestionId"]: line["QuestionText"] for line in csv.DictReader(file)}
    return [texts.get(name) for name in table.features]


def with_texts(table: Table, texts: list[str | None]) -> Table:
    """Return the table with a further metadata column ``text``, whose type is inferred."""
    assert table.metadata is not None
    assert table.schema is not None
    metadata = table.metadata.append_column("text", pa.array(texts))
    types = {column.name: column.spec for column in table.schema.columns}
    return replace(table, metadata=metadata, schema=MetadataSchema.fit(metadata, types, table.encoders))
