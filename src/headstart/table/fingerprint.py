"""A digest of a table's content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.table.compact import parts_of

if TYPE_CHECKING:
    from headstart.table.table import Table


def fingerprint(table: Table) -> str:
    """Return the SHA-256 digest of everything in a table except its notes.

    Where several processes have a part of the rows each, it does not depend on how many they are.
    """
    digest = hashlib.sha256()
    shared = crew().launched
    for names in (() if shared else table.rows, table.features, map(str, table.kinds)):
        digest.update(repr(list(names)).encode())
    arrays = (table.row_index, table.feature_index, table.values, table.times, table.weights)
    for array in _shared_sums(table) if shared else arrays:
        if array is not None:
            _update(digest, array)
    for schema, metadata in ((table.schema, table.metadata), (table.row_schema, table.row_metadata)):
        if metadata is None:
            continue
        digest.update(str(schema and schema.model_dump_json()).encode())
        for column in metadata.columns:
            # Nulls are separate, because the bytes that Arrow stores in their place are arbitrary.
            digest.update(column.is_null().to_numpy(zero_copy_only=False).tobytes())
            digest.update(_serialize(column.drop_null()))
    return digest.hexdigest()


def _update(digest: hashlib._Hash, array: NDArray[Any]) -> None:
    """Add numbers in 8 bytes each, however few they are held in: the digest of a table must not change."""
    wide = np.float64 if array.dtype.kind == "f" else np.int64
    for part in parts_of(len(array)):
        digest.update(np.ascontiguousarray(array[part], dtype=wide).data)


def _shared_sums(table: Table) -> list[NDArray[np.int64]]:
    """Sums of hashes of all observations and all rows, which may be added up in any order."""
    names = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in table.rows]
    rows = np.frombuffer(b"".join(names), dtype=np.uint64)
    sums = []
    for salt in (1, 2):
        salted, every = _mixed(rows + np.uint64(salt)), np.uint64(0)
        for part in parts_of(len(table)):
            mixed = _mixed(salted[table.row_index[part]] + table.feature_index[part].astype(np.uint64))
            values = table.values[part].astype(np.float64).view(np.uint64)
            every = np.add(every, _mixed(mixed + values).sum(dtype=np.uint64), dtype=np.uint64)
        both = np.array([every, salted.sum(dtype=np.uint64)], dtype=np.uint64)
        sums.append(crew().total(torch.from_numpy(both.view(np.int64))).numpy())
    return sums


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each number mixed so that similar ones become unlike (the finaliser of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _serialize(column: pa.ChunkedArray) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"": column.type})) as writer:
        writer.write_table(pa.table([column.combine_chunks()], names=[""]))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
