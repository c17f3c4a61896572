from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.datasets import eedi
from headstart.datasets.public import dense_part
from headstart.errors import InputError

SUBJECTS = "\ufeffSubjectId,Name,ParentId,Level\n3,Maths,NULL,0\n32,Number,3,1\n33,Number,32,2\n"
QUESTIONS = 'QuestionId,SubjectId\n7,"[3, 32]"\n8,"[3, 33]"\n9,[3]\n'
ANSWERS = "QuestionId,UserId,IsCorrect\n7,1,1\n8,1,0\n7,2,0\n8,2,1\n9,2,1\n"


@pytest.fixture
def files(tmp_path):
    """Write files in the official layout, and return the folder."""

    def write(answers: str = ANSWERS, questions: str = QUESTIONS, subjects: str = SUBJECTS) -> Path:
        for name, text in (
            ("train_data/train_task_3_4.csv", answers),
            ("metadata/question_metadata_task_3_4.csv", questions),
            ("metadata/subject_metadata.csv", subjects),
        ):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return write


def test_official_files_are_read_by_name(files):
    table = eedi(files(), at_least=1)
    assert table.shape == (2, 3)
    assert table.observations_of("7") == {"1": 1.0, "2": 0.0}
    assert table.kinds.summary() == "3 binary"
    subjects = table.metadata.column("subjects").to_pylist()
    assert subjects == [["Maths", "Number [32]"], ["Maths", "Number [33]"], ["Maths"]]


def test_other_columns_and_the_order_of_columns_do_not_matter(files):
    lines = ["QuestionId,UserId,AnswerId,IsCorrect,CorrectAnswer,AnswerValue"]
    for line in ANSWERS.splitlines()[1:]:
        question, student, right = line.split(",")
        lines.append(f"{question},{student},99,{right},4,2")
    assert eedi(files("\n".join(lines)), at_least=1) == eedi(files(), at_least=1)


def test_students_and_questions_with_few_answers_are_left_out(files):
    assert eedi(files(), at_least=2).shape == (2, 2)
    with pytest.raises(InputError, match="at least 3 answers each; lower at_least"):
        eedi(files(), at_least=3)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, unique=True), st.integers(1, 4))
def test_the_dense_part_equals_a_slow_version(pairs, at_least):
    rows, features = (np.array(column) for column in zip(*pairs, strict=True))
    kept = dense_part(rows, features, at_least)
    slow = set(pairs)
    while True:  # remove one observation at a time
        few = [
            pair
            for pair in slow
            if sum(p[0] == pair[0] for p in slow) < at_least or sum(p[1] == pair[1] for p in slow) < at_least
        ]
        if not few:
            break
        slow.discard(few[0])
    assert {pair for pair, stays in zip(pairs, kept, strict=True) if stays} == slow


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("QuestionId,UserId,IsCorrect\n7,1,1\n8,x,0\n", r"train_task_3_4.csv, line 3: .* got '8,x,0'"),
        ("QuestionId,UserId,IsCorrect\n7,1,1\n8,1\n", r"line 3: expected 3 fields .* got '8,1'"),
        ("QuestionId,UserId,IsCorrect\n7,1,1\n8,1,", r"line 3: .* got '8,1,'"),
        (
            "QuestionId,UserId,IsCorrect\n7,1,1\n8,1,2\n",
            r"line 3: IsCorrect must be 0 or 1; got QuestionId 8",
        ),
        ("QuestionId,UserId,IsCorrect\n77,1,1\n", r"line 2: the question is not in question_metadata"),
        ("QuestionId,UserId\n7,1\n", r"line 1: there is no column 'IsCorrect'"),
        ("QuestionId,UserId,IsCorrect\n", "contains only a header"),
        ("", r"line 1: there is no column 'QuestionId'"),
    ],
)
def test_the_error_for_a_bad_answer_quotes_the_line(files, answers, message):
    with pytest.raises(InputError, match=message):
        eedi(files(answers))


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ('QuestionId,SubjectId\n7,"[3, 99]"\n', "line 2: subject 99 is not in subject_metadata.csv"),
        ('QuestionId,SubjectId\n7,"[3, 3"\n', r"line 2: expected the number of a question and a list"),
        ("QuestionId,SubjectId\n7\n", r"line 2: expected the number of a question and a list"),
        ("QuestionID,SubjectId\n7,[3]\n", r"no column 'QuestionId'; did you mean 'QuestionID'"),
    ],
)
def test_the_error_for_a_bad_question_quotes_the_line(files, questions, message):
    with pytest.raises(InputError, match=message):
        eedi(files(questions=questions))


def test_the_error_for_a_bad_subject_quotes_the_line(files):
    with pytest.raises(InputError, match=r"subject_metadata.csv, line 2: expected a number .* got 'x,Maths"):
        eedi(files(subjects="SubjectId,Name,ParentId,Level\nx,Maths,NULL,0\n"))


def test_the_error_for_missing_files_says_what_to_download(tmp_path):
    with pytest.raises(InputError, match=r"no train_data/train_task_1_2.csv .*tasks 1/2 .*https://eedi.com"):
        eedi(tmp_path, task="1_2")
    with pytest.raises(InputError, match="task must be one of 1_2, 3_4"):
        eedi(tmp_path, task="5")


def test_the_real_eedi():
    variable = os.environ.get("HEADSTART_DATA")
    folder = Path(variable) if variable else Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "eedi" / "train_data").is_dir():
        pytest.skip(f"Eedi is not in {folder}; set HEADSTART_DATA to the folder that contains eedi/")
    table = eedi(folder, at_least=1)
    assert table.features.position("212") >= 0
    assert 0.5 < table.values.mean() < 0.56
    filtered = eedi(folder, at_least=50)
    assert filtered.counts.min() >= 50
    assert np.bincount(filtered.row_index).min() >= 50
    assert all(labels and labels[0] == "Maths" for labels in table.metadata.column("subjects").to_pylist())
