"""Titles of features and rows: texts of their metadata that people read beside, or in place of, names.

The title is the metadata column that the words of the model name (``Words.title``); by default ``title``, or
``name`` if there is no such column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from headstart.errors import InputError, join_names
from headstart.model.state import ModelState

TITLE_COLUMNS = ("title", "name")


def title_of(record: Mapping[str, object], column: str | None = None) -> str | None:
    """Return the title in the metadata ``record`` of a feature or row; None if it has none.

    It is in the given ``column``, by default in ``title`` or ``name``.

    >>> title_of({"year": 1979, "title": "Alien"})
    'Alien'
    """
    for name in _title_columns(column):
        if isinstance(title := record.get(name), str) and title:
            return title
    return None


def titles_of(records: Sequence[Mapping[str, object]], column: str | None = None) -> tuple[str, ...] | None:
    """Return the title in each of ``records``, empty if it has none; None if none has one."""
    titles = [title_of(record, column) or "" for record in records]
    return tuple(titles) if any(titles) else None


def feature_titles(model: ModelState, names: Iterable[str]) -> tuple[str, ...] | None:
    """Return the titles of features, empty for a feature without one; None if none has one."""
    column = model.words.title
    known = [] if model.schema is None else [metadata.name for metadata in model.schema.columns]
    if not any(name in known for name in _title_columns(column)):
        return None
    store = model.feature_store
    columns = (name if name in store else store.categories.get(name, [name])[0] for name in names)
    return titles_of([store[name].readable_metadata(model.schema) for name in columns], column)


def row_titles(model: ModelState, positions: Sequence[int]) -> tuple[str, ...] | None:
    """Return the titles of the rows at ``positions``, empty for a row without one; None if none has one."""
    records = model.row_metadata
    known = [] if records is None else records.lines.column_names
    columns = [name for name in _title_columns(model.words.title) if name in known]
    if records is None or not columns:
        return None
    return titles_of(
        records.lines.select(columns).take(pa.array(positions, pa.int64())).to_pylist(), model.words.title
    )


def _title_columns(column: str | None) -> Sequence[str]:
    """Return the columns that can have titles, the first one preferred."""
    return TITLE_COLUMNS if column is None else (column,)


def search_features(model: ModelState, text: str) -> list[str]:
    """Return the features whose names or titles contain ``text``. Case is ignored."""
    names = model.feature_store.feature_names
    return search_names(names, feature_titles(model, names), text)


def search_rows(model: ModelState, text: str) -> list[str]:
    """Return the rows whose names or titles contain ``text``. Case is ignored."""
    return search_names(model.rows, row_titles(model, range(len(model.rows))), text)


def search_names(names: Sequence[str], titles: Sequence[str] | None, text: str) -> list[str]:
    """Return the names that contain a text, or whose titles contain it. Case is ignored.

    >>> search_names(["m1", "m2"], ["Alien", "Dune"], "AL")
    ['m1']
    """
    wanted = text.casefold()
    pairs = zip(names, titles or [""] * len(names), strict=True)
    return [name for name, title in pairs if wanted in name.casefold() or wanted in title.casefold()]


def feature_with_title(model: ModelState, title: str) -> str | None:
    """Return the only feature with this title; None if there is none. Case is ignored.

    Raises
    ------
    InputError
        If several have it.
    """
    wanted, names = title.casefold(), model.feature_store.feature_names
    pairs = zip(names, feature_titles(model, names) or (), strict=False)
    matching = [name for name, other in pairs if other.casefold() == wanted]
    if len(matching) > 1:
        raise InputError(f"{join_names(matching)} all have the title {title!r}; use one of these names")
    return matching[0] if matching else None
