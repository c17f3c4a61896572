"""Titles of features and rows: texts of their metadata that people read beside, or in place of, names.

The title is the metadata column ``title``, or ``name`` if there is no such column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headstart.errors import InputError, join_names
from headstart.model.state import ModelState

TITLE_COLUMNS = ("title", "name")


def title_of(record: Mapping[str, object]) -> str | None:
    """Return the title in the metadata ``record`` of a feature or row; None if it has none.

    >>> title_of({"year": 1979, "title": "Alien"})
    'Alien'
    """
    for column in TITLE_COLUMNS:
        if isinstance(title := record.get(column), str) and title:
            return title
    return None


def titles_of(records: Sequence[Mapping[str, object]]) -> tuple[str, ...] | None:
    """Return the title in each of ``records``, empty if it has none; None if none has one."""
    titles = [title_of(record) or "" for record in records]
    return tuple(titles) if any(titles) else None


def feature_titles(model: ModelState, names: Iterable[str]) -> tuple[str, ...] | None:
    """Return the titles of features, empty for a feature without one; None if none has one."""
    if not _has_titles(None if model.schema is None else [c.name for c in model.schema.columns]):
        return None
    store = model.feature_store
    columns = (name if name in store else store.categories.get(name, [name])[0] for name in names)
    return titles_of([store[column].readable_metadata(model.schema) for column in columns])


def row_titles(model: ModelState, positions: Sequence[int]) -> tuple[str, ...] | None:
    """Return the titles of the rows at ``positions``, empty for a row without one; None if none has one."""
    records = model.row_metadata
    if records is None or not _has_titles(records.lines.column_names):
        return None
    columns = [column for column in TITLE_COLUMNS if column in records.lines.column_names]
    return titles_of(records.lines.select(columns).take(list(positions)).to_pylist())


def _has_titles(columns: Sequence[str] | None) -> bool:
    return columns is not None and any(column in columns for column in TITLE_COLUMNS)


def search_names(names: Sequence[str], titles: Sequence[str] | None, text: str) -> list[str]:
    """Return the names that contain a text, or whose titles contain it. Case is ignored.

    >>> search_names(["m1", "m2"], ["Alien", "Dune"], "AL")
    ['m1']
    """
    wanted = text.casefold()
    pairs = zip(names, titles or [""] * len(names), strict=True)
    return [name for name, title in pairs if wanted in name.casefold() or wanted in title.casefold()]


def name_with_title(names: Sequence[str], titles: Sequence[str] | None, title: str) -> str | None:
    """Return the only name with this title; None if there is none. Case is ignored.

    Raises
    ------
    InputError
        If several have it.
    """
    wanted = title.casefold()
    pairs = zip(names, titles or (), strict=False)
    found = [name for name, own in pairs if own.casefold() == wanted]
    if len(found) > 1:
        raise InputError(f"{join_names(found)} all have the title {title!r}; use one of these names")
    return found[0] if found else None
