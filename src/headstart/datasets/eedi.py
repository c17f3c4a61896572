"""Eedi: right and wrong answers of students to mathematics questions, with the subjects of the questions."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.datasets.lines import read_numbers
from headstart.errors import InputError, did_you_mean
from headstart.table import Table

Task = Literal["1_2", "3_4"]

_URL = "https://eedi.com/projects/neurips-education-challenge"
_COLUMNS = {  # the required columns, with a check of their texts
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
    answers = _official(Path(folder), f"train_data/train_task_{task}.csv", task)
    questions = _official(Path(folder), f"metadata/question_metadata_task_{task}.csv", task)
    tree = _official(Path(folder), "metadata/subject_metadata.csv", task)
    subjects = _read_questions(questions, _read_subjects(tree))
    columns = read_numbers(answers, _COLUMNS)
    question, student, right = (columns[name].to_numpy() for name in _COLUMNS)
    for wrong, reason in (
        ((right != 0) & (right != 1), "IsCorrect must be 0 or 1"),
        (~np.isin(question, list(subjects)), f"the question is not in {questions.name}"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            record = f"QuestionId {question[first]}, UserId {student[first]}, IsCorrect {right[first]}"
            raise InputError(f"{answers}, line {first + 2}: {reason}; got {record}")
    kept = dense_part(student, question, at_least)
    if not kept.any():
        raise InputError(f"no students and questions have at least {at_least} answers each; lower at_least")
    asked = np.unique(question[kept])
    long = pa.table({"student": student[kept], "question": question[kept], "right": right[kept]})
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
    kept, previous = np.full(len(rows), True), -1
    while (count := int(kept.sum())) != previous:
        previous = count
        for index in (rows, features):
            kept &= np.bincount(index[kept], minlength=int(index.max()) + 1)[index] >= at_least
    return kept


def _official(folder: Path, name: str, task: str) -> Path:
    """Return the path of an official file, in ``folder`` or in its subfolder ``eedi``."""
    for path in (folder / name, folder / "eedi" / name):
        if path.is_file():
            return path
    raise InputError(
        f"there is no {name} in {str(folder)!r}; download the data of tasks {task.replace('_', '/')} of the "
        f"NeurIPS 2020 Education Challenge from {_URL}, unpack it, and pass the folder that contains "
        "train_data/ and metadata/"
    )


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
