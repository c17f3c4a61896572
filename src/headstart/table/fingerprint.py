"""A digest of a table's content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from headstart.table.table import Table


def fingerprint(table: Table) -> str:
    """Return the SHA-256 digest of everything in a table except its notes."""
    digest = hashlib.sha256()
    for names in (table.rows, table.features, map(str, table.kinds)):
        digest.update(repr(list(names)).encode())
    for array in (table.row_index, table.feature_index, table.values, table.times, table.weights):
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    for schema, metadata in ((table.schema, table.metadata), (table.row_schema, table.row_metadata)):
        if metadata is None:
            continue
        digest.update(str(schema and schema.model_dump_json()).encode())
        for column in metadata.columns:
            # Nulls are separate, because the bytes that Arrow stores in their place are arbitrary.
            digest.update(column.is_null().to_numpy(zero_copy_only=False).tobytes())
            digest.update(_serialize(column.drop_null()))
    return digest.hexdigest()


def _serialize(column: pa.ChunkedArray) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"": column.type})) as writer:
        writer.write_table(pa.table([column.combine_chunks()], names=[""]))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
