"""The parts of a table, assembled from sources of observations and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.errors import InputError, argument, listed, worded
from headstart.progress import Reporter
from headstart.table.columns.text import TextColumn
from headstart.table.compact import Floats, Positions, parts_of
from headstart.table.encoders import EncoderLike, finding
from headstart.table.inference import KindsLike, check_values, parse_kind, resolve_kinds
from headstart.table.kinds import Kinds
from headstart.table.metadata import MetadataSchema
from headstart.table.names import Names, as_name
from headstart.table.numbering import sorted_names
from headstart.table.readers import Columns, Form, choose_form, read_long, read_wide
from headstart.table.sharing import shared_out
from headstart.table.sorting import DUPLICATES, SortedObservations, merge_duplicates, sort_observations
from headstart.table.sources import Source, TextFormat, is_text_file, open_source
from headstart.table.tidying import align, check_finite, read_metadata

T = TypeVar("T")


class TableParts(NamedTuple):
    """The fields of a ``Table``, in their order."""

    rows: Names
    features: Names
    kinds: Kinds
    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    metadata: pa.Table | None
    schema: MetadataSchema | None
    notes: tuple[str, ...]
    encoders: dict[str, EncoderLike]
    row_metadata: pa.Table | None
    row_schema: MetadataSchema | None
    times: NDArray[np.float64] | None  # (n,)


def assemble(
    observations: object,
    metadata: object,
    row_metadata: object,
    columns: Columns,
    form: Form,
    kinds: KindsLike,
    metadata_types: Mapping[str, str] | None,
    row_metadata_types: Mapping[str, str] | None,
    duplicates: str,
    text: TextFormat,
    encoders: Mapping[str, EncoderLike] | None,
    reporter: Reporter,
) -> tuple[TableParts, dict[str, NDArray[np.float32]]]:
    """Read all parts of a table, and the vectors of the metadata columns that an encoder encodes."""
    opened = crew().agreed(
        lambda: _opened((observations, metadata, row_metadata), columns.tidy(), form, kinds, duplicates, text)
    )
    source, form, columns, described, lines, known_rows, row_lines = opened
    row, feature, value = columns.or_usual()
    long = form == "long"
    unsorted = crew().agreed(
        lambda: read_long(source, row, feature, value, columns.time) if long else read_wide(source, row)
    )
    unsorted = shared_out(unsorted, source.label)
    notes = [*unsorted.notes, *(_compare_features(unsorted.features, described) if lines is not None else ())]
    rows = Names(sorted_names([*unsorted.rows, *known_rows]), "row")
    features = Names(sorted_names([*unsorted.features, *described]), "feature")
    row_index = _moved(unsorted.row_numbers, rows.positions(unsorted.rows))
    feature_index = _moved(unsorted.feature_numbers, features.positions(unsorted.features))
    values, times, spellings = unsorted.values, unsorted.times, unsorted.spellings
    del unsorted  # sorting needs the most memory
    if times is not None:  # so that of several values of a cell the newest is the last
        order = np.argsort(times, kind="stable")
        row_index, feature_index = row_index[order], feature_index[order]
        values, times = values[order], times[order]
    ordered = sort_observations(row_index, feature_index, values, (len(rows), len(features)), times)
    del row_index, feature_index, values, times
    ordered, merge_notes = crew().agreed(
        lambda: merge_duplicates(ordered, rows, features, duplicates, spellings)
    )
    resolved, kind_notes = _kinds(kinds, rows, features, ordered)
    notes += [*merge_notes, *kind_notes]
    types = _tidy_keys(metadata_types or {}, "metadata_types must map columns to types, as {'year': 'date'}")
    functions = _tidy_keys(encoders or {}, "encoders must map columns to functions, as {'image': function}")
    lines = None if lines is None else align(described, lines, features)
    aligned, schema, vectors = _feature_metadata(lines, features, types, functions, reporter)
    if schema is not None:
        notes.append(f"metadata columns read as {schema.describe()} ({_types_to_paste(schema)})")
        notes += _why_hashed(schema, types)
    described_rows = _row_metadata(known_rows, row_lines, rows, row_metadata_types or {}, reporter)
    if described_rows[1] is not None:
        notes.append(f"row metadata columns read as {described_rows[1].describe()}")
    parts = TableParts(
        rows, features, resolved, *ordered[:3], aligned, schema, tuple(notes), functions, *described_rows,
        ordered.times,
    )  # fmt: skip
    return parts, vectors


class _Opened(NamedTuple):
    """The observations, which are yet to be read, and the metadata."""

    source: Source
    form: Form
    columns: Columns
    described: list[str]  # the features that have metadata
    lines: pa.Table | None  # their metadata
    known_rows: list[str]  # the rows that have metadata
    row_lines: pa.Table | None


def _opened(
    sources: tuple[object, object, object],
    columns: Columns,
    form: Form,
    kinds: KindsLike,
    duplicates: str,
    text: TextFormat,
) -> _Opened:
    """Open the sources of observations, metadata and row metadata; of several processes each its share."""
    _check_arguments(kinds, duplicates)
    observations, metadata, row_metadata = sources
    if crew().launched and row_metadata is not None:
        raise InputError(f"{argument('row_metadata')} is not supported under torchrun; leave it out")
    row, feature, value = columns.or_usual()
    source = open_source(observations, (row, feature, value), text)
    if text.given and not (is_text_file(observations) or is_text_file(metadata)):
        raise InputError(
            f"{source.label} is not a text file: no separator, decimal point or encoding can be given for it"
        )
    # Metadata is small, so its errors appear before the long work.
    described: list[str] | None = None
    lines: pa.Table | None = None
    if metadata is not None:
        described, lines = read_metadata(open_source(metadata, (feature,), text), feature)
    known_rows: list[str] = []
    row_lines: pa.Table | None = None
    if row_metadata is not None:
        known_rows, row_lines = read_metadata(open_source(row_metadata, (row,), text), row, "row")
    form = choose_form(source, form, columns, described)
    if crew().launched:
        source = source.part(crew().rank, crew().size)
    return _Opened(source, form, columns, described or [], lines, known_rows, row_lines)


def _feature_metadata(
    lines: pa.Table | None,
    features: Names,
    types: Mapping[str, str],
    functions: Mapping[str, EncoderLike],
    reporter: Reporter,
) -> tuple[pa.Table | None, MetadataSchema | None, dict[str, NDArray[np.float32]]]:
    """The metadata of features, how it is encoded, and the vectors of the columns that an encoder encodes."""
    if lines is None or not lines.num_columns:
        if types or functions:
            given = argument("metadata_types" if types else "encoders")
            raise InputError(f"{given} was given, but there are no columns of metadata to apply it to")
        return None, None, {}
    used = [name for name in lines.column_names if types.get(name) != "ignore"]
    check_finite(lines.select(used), features)
    return lines, *MetadataSchema.fit_encoded(lines, types, functions, reporter)


def _row_metadata(
    known: list[str], lines: pa.Table | None, rows: Names, types: Mapping[str, str], reporter: Reporter
) -> tuple[pa.Table | None, MetadataSchema | None]:
    """The metadata of rows in their order, and how it is encoded."""
    types = _tidy_keys(types, "row_metadata_types must map columns to types, as {'age': 'number'}")
    if lines is None or not lines.num_columns:
        if types:
            raise InputError(
                f"{argument('row_metadata_types')} was given, but there are no columns of row metadata"
            )
        return None, None
    if any(kind == "custom" for kind in types.values()):
        raise InputError("row metadata has no columns of the type custom; give numbers instead")
    aligned = align(known, lines, rows)
    used = [name for name in aligned.column_names if types.get(name) != "ignore"]
    check_finite(aligned.select(used), rows)
    return aligned, MetadataSchema.fit_encoded(aligned, types, {}, reporter)[0]


def _check_arguments(kinds: KindsLike, duplicates: str) -> None:
    if duplicates not in DUPLICATES:
        raise InputError(f"duplicates must be one of {', '.join(DUPLICATES)}; got {duplicates!r}")
    for kind in kinds.values() if isinstance(kinds, Mapping) else () if kinds is None else (kinds,):
        parse_kind(kind)


def _tidy_keys(given: Mapping[str, T], rule: str) -> dict[str, T]:
    if not isinstance(given, Mapping):
        raise InputError(f"{rule}; got {given!r}")
    return {as_name(name, "column name"): said for name, said in given.items()}


def _types_to_paste(schema: MetadataSchema) -> str:
    """Return the types as they can be given to a later call."""
    types = {column.name: column.spec for column in schema.columns}
    options = " ".join(argument("metadata_types", f"{name}={text}") for name, text in types.items())
    return worded(f"metadata_types={types!r}", options)


def _moved(numbers: Positions, positions: NDArray[np.int64]) -> Positions:
    """Write the position of each name in place of its number: (n,)."""
    small = positions.astype(np.int32)
    for part in parts_of(len(numbers)):
        numbers[part] = small[numbers[part]]
    return numbers


def _kinds(
    kinds: KindsLike, rows: Names, features: Names, observations: SortedObservations
) -> tuple[Kinds, tuple[str, ...]]:
    resolved, notes = resolve_kinds(kinds, features, observations.feature_index, observations.values)
    if kinds is not None:
        crew().agreed(lambda: check_values(resolved, rows, features, *observations[:3]))
    return resolved, notes


def _why_hashed(schema: MetadataSchema, types: dict[str, str]) -> list[str]:
    """Return a note if texts could be understood better than by hashed words."""
    hashed = [
        column.name
        for column in schema.columns
        if isinstance(column, TextColumn)
        and column.encoder is None
        and types.get(column.name, "text") == "text"
    ]
    reason = finding.why_no_default() if hashed else None
    return [] if reason is None else [f"no sentence encoder for {listed(hashed)}: {reason}"]


def _compare_features(observed: list[str], described: list[str]) -> list[str]:
    """Return notes about features that have only observations, or only metadata."""
    notes = []
    if without_metadata := sorted(set(observed) - set(described)):
        notes.append(f"features without metadata: {len(without_metadata)} ({listed(without_metadata)})")
    if unobserved := sorted(set(described) - set(observed)):
        notes.append(f"features with metadata but no observations: {len(unobserved)} ({listed(unobserved)})")
    return notes
