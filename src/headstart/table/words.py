"""What users call rows, features and values of a table, and which metadata column has the titles."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from headstart.config import Config

Word = Annotated[str, Field(min_length=1, max_length=40)]

_ENDING = re.compile(r"[\s_.-]*(?:id|ID|Id|key|number|no|nr|code|name)$")  # of a column of identifiers
_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|[\s_.-]+")


class Words(Config):
    """The words of a table's users, taken from the names of its columns unless they are given."""

    row: Word = "row"  # the noun for a row, in the singular
    feature: Word = "feature"  # the noun for a feature, in the singular
    value: Word = "value"  # the noun for a value
    title: Word | None = None  # the metadata column with titles of features and rows; None: title, or name

    @classmethod
    def from_columns(cls, row: str, feature: str, value: str, given: object = None) -> Words:
        """Return the words of the columns of row, feature and value, unless others are ``given``.

        >>> Words.from_columns("userId", "film", "stars", {"title": "headline"})
        Words(row='user', feature='film', value='stars', title='headline')
        """
        derived = {"row": noun_of(row, "row"), "feature": noun_of(feature, "feature")}
        explicit = cls.of(given)
        chosen = explicit.model_dump(include=explicit.model_fields_set)
        return cls(**{**derived, "value": noun_of(value, "value"), **chosen})

    @property
    def unit(self) -> str | None:
        """The word for the unit of values; None if their column says only "value"."""
        return None if self.value == "value" else self.value


def noun_of(column: str, default: str) -> str:
    """Return the noun in the name of a column: its words without an ending that says "identifier".

    >>> noun_of("movieId", "feature"), noun_of("Patient ID", "row"), noun_of("id", "row")
    ('movie', 'patient', 'row')
    """
    words = " ".join(part for part in _BOUNDARY.split(_ENDING.sub("", column)) if part).casefold()
    return words if words and len(words) <= 40 and words.replace(" ", "").isalpha() else default
