"""The metadata of new rows as users give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError
from headstart.model.inputs.given import require_mapping, tidy_keys, unique_names
from headstart.model.parts.row_metadata import RowMetadata


class NewRows(NamedTuple):
    """Rows that are to be added, after all of it was checked."""

    names: list[str]
    given: Mapping[Any, object]  # the observations of each, as they were given
    records: Sequence[Mapping[str, object]]  # their metadata as it was given
    encoded: NDArray[np.float32]  # (rows, width): the same as numbers
    teach: bool  # whether their observations refine the features, too


def encoded_rows(
    held: RowMetadata | None, names: Sequence[str], given: Mapping[Any, Any] | None
) -> tuple[list[dict[str, object]], NDArray[np.float32]]:
    """The metadata that is given of new rows, by their names: as it was given, and encoded."""
    if given is not None and held is None:
        raise InputError("the model was fitted without row metadata and can use none")
    said = {} if given is None else require_mapping(given, "metadata of rows", "{'u99': {'age': 31}}")
    tidy = dict(zip(unique_names(said, "metadata of rows", "row"), said.values(), strict=True))
    strange = [name for name in tidy if name not in set(names)]
    if strange:
        raise UnknownNameError(f"metadata is given of row {strange[0]!r}, which is not among the new rows")
    if held is None:
        return [{} for _ in names], np.zeros((len(names), 0), np.float32)
    columns = [column.name for column in held.schema.columns]
    records: list[dict[str, object]] = []
    for name in names:
        record = require_mapping(tidy.get(name) or {}, f"row {name!r}: metadata", "{'age': 31}")
        records.append(tidy_keys(record, columns))
        try:
            if len(record):
                held.schema.encode([records[-1]])
        except InputError as error:
            raise type(error)(f"row {name!r}: {error}") from None
    return records, held.schema.encode(records) if records else held.encoded[:0]
