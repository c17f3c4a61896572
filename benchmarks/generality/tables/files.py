"""Tables that are read from the data folder."""

from __future__ import annotations

import csv
from pathlib import Path

from generality.tables.entry import Entry, described, from_frame
from headstart import Table
from headstart.datasets.public import eedi, movielens_1m, neuropathic


def movielens_1m_titles(folder: Path) -> Table:
    table = movielens_1m(folder)
    return described(table, {"title": {name: name for name in table.features}}, {"title": "text"})


def eedi_text(folder: Path) -> Table:
    texts = _texts(folder / "metadata" / "question_text.csv", "QuestionId", "QuestionText")
    return described(eedi(folder), {"text": texts}, {"text": "text"})


def big5(folder: Path) -> Table:
    import pandas as pd

    frame = pd.read_csv(folder / "answers.csv").set_index("row")
    frame = frame.where((frame >= 1) & (frame <= 5))  # 0 stands for no answer
    texts = _texts(folder / "items.csv", "item", "text")
    return from_frame(
        frame, kind="rating:1:5", observed=0.4, metadata={"text": texts}, types={"text": "text"}
    )


def _texts(path: Path, name: str, text: str) -> dict[str, str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {line[name]: line[text] for line in csv.DictReader(file)}


FILES = (
    Entry("big5", "50 personality items with their texts, 1 to 5, 40 % observed", big5, "big5"),
    Entry(
        "neuropathic",
        "81 diagnostic labels of patients of a rebuilt simulator, 0/1",
        neuropathic,
        "neuropathic",
    ),
    Entry("eedi", "right or wrong answers to 771 questions with their subjects", eedi, "eedi"),
    Entry("eedi-text", "the same with the questions' texts, as read from images", eedi_text, "eedi"),
    Entry("ml-1m", "MovieLens-1M: 6,040 people, films with genres and year", movielens_1m, "ml-1m"),
    Entry("ml-1m-titles", "the same with the films' titles as text", movielens_1m_titles, "ml-1m"),
)
