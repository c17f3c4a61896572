"""Define the bodies of requests: unknown fields are refused, numbers are finite, lengths are limited."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    StringConstraints,
)

from headstart.model.prediction import MAX_LEVEL
from headstart.table.times import LEAST_WEIGHT, MOST_WEIGHT

MAX_NAME = 500

MAX_TEXT = 10_000

MAX_NAMES = 100_000


_CONTROL_CHARACTER, _SURROGATE = re.compile("[\x00-\x1f\x7f]"), re.compile("[\ud800-\udfff]")


def _check_characters(text: str) -> str:
    """Refuse control characters and invalid Unicode, which databases and terminals cannot handle."""
    if _CONTROL_CHARACTER.search(text):
        raise ValueError("control characters are not allowed in names and paths")
    if _SURROGATE.search(text):
        raise ValueError("it has characters that are not valid Unicode")
    return text


_NAME_PATTERN = {"pattern": r"^[^\u0000-\u001f\u007f]+$"}

Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_NAME, strict=True),
    AfterValidator(_check_characters),
    Field(json_schema_extra=_NAME_PATTERN),
]

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT, strict=True)]


def _check_value(value: Any) -> float | str:
    """Return a finite number or a label; the model knows whether it is possible.

    A whole number stays one, so that the model can refuse it if it would lose digits.
    """
    if isinstance(value, str) and len(value) <= _MAX_LABEL:
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    if not number:
        raise ValueError("a value is a finite number, or a label of at most 500 characters")
    return value  # type: ignore[no-any-return]


_MAX_LABEL = 500  # characters

Value = Annotated[Any, PlainValidator(_check_value, json_schema_input_type=float | str)]


def _check_integers(value: Any) -> Any:
    """Refuse whole numbers beyond 64 bits, which arrays and databases cannot hold."""
    if isinstance(value, list):
        for part in value:
            _check_integers(part)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("whole numbers must fit into 64 bits; write a longer one as text")
    return value


Pixel = int | FiniteFloat


Metadatum = Annotated[
    Text | bool | int | FiniteFloat | list[Text | bool | int | FiniteFloat] | list[list[Pixel]] | None,
    AfterValidator(_check_integers),
]

Metadata = Annotated[dict[Name, Metadatum], Field(max_length=1000)]

Observations = Annotated[dict[Name, Value], Field(max_length=MAX_NAMES)]

Weight = Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT, strict=True)]

Level = Annotated[float, Field(gt=0, le=MAX_LEVEL, strict=True)]

Quantile = Annotated[float, Field(ge=0.5, le=MAX_LEVEL, strict=True)]

Count = Annotated[int, Field(ge=1, le=1000, strict=True)]

By = Literal["mean", "lower", "upper", "sample", "lift", "relevance", "information"]

Where = Annotated[
    dict[Name, str | int | float | bool | list[str | int | float | bool]],
    Field(max_length=100, description="Metadata to have: one of the values in each column."),
]

NamesList = Annotated[list[Name], Field(min_length=1, max_length=MAX_NAMES)]


Time = Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, StringConstraints(max_length=100)]

_TIME_HELP = "Time of the observations, a number or a date; only for a model with a half-life."


class Body(BaseModel):
    """The base class of bodies."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NewFeature(Body):
    """A feature to add."""

    name: Name
    metadata: Metadata = Field(default_factory=dict, description="Its metadata, by column.")
    observations: Observations = Field(default_factory=dict, description="Its first values, by row.")
    kind: Annotated[str, StringConstraints(max_length=10_000)] | None = Field(
        default=None,
        description="Such as rating:1:5 or category:A,B,C; by default the most frequent kind of the model.",
    )
    levels: Annotated[dict[Name, Metadata], Field(max_length=1000)] | None = Field(
        default=None, description="Of a category, the metadata of each level."
    )
    weight: Weight | Annotated[dict[Name, Weight], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="How much the observations count, 1 by default: one number, or by row."
    )
    time: Time | None = Field(default=None, description=_TIME_HELP)


class NewRow(Body):
    """A row to add."""

    name: Name
    metadata: Metadata | None = None
    observations: Observations = Field(default_factory=dict, description="Its first values, by feature.")
    time: Time | None = Field(default=None, description=_TIME_HELP)


class Observation(Body):
    """One value of one row and feature."""

    row: Name
    feature: Name
    value: Value
    time: Time | None = Field(default=None, description=_TIME_HELP)
    weight: Weight | None = Field(default=None, description="How much the observation counts, 1 by default.")


class NewObservations(Body):
    """Observations to add; all of them or none."""

    observations: Annotated[list[Observation], Field(min_length=1, max_length=MAX_NAMES)]


class Predict(Body):
    """Rows × features to predict."""

    rows: NamesList | Annotated[dict[Name, Observations], Field(min_length=1, max_length=10_000)] = Field(
        description="Names of rows; or new rows with their observations, which are not added."
    )
    features: NamesList
    level: Level = 0.9
    form: Literal["cells", "arrays"] = Field(
        default="cells", description="One object for each cell, or arrays (rows × features)."
    )


class Sample(Body):
    """Rows × features to draw jointly."""

    rows: NamesList | Annotated[dict[Name, Observations], Field(min_length=1, max_length=10_000)] = Field(
        description="Names of rows; or new rows with their observations, which are not added."
    )
    features: NamesList
    n: Count = 1
    random_state: int = Field(default=0, ge=0, lt=2**63, description="The seed.")


class Impute(Body):
    """Rows × features of the model to fill several times."""

    m: Count = 20
    rows: NamesList | None = None
    features: NamesList | None = None
    random_state: int = Field(default=0, ge=0, lt=2**63, description="The seed.")


class Recommend(Body):
    """Features to rank for a row."""

    row: Name | Observations = Field(description="The name of a row, or the observations of a new one.")
    n: Count = 10
    features: NamesList | None = None
    by: By | None = Field(
        default=None, description="By default the criterion that the fit found to rank best."
    )
    exclude_observed: bool = True
    exclude: NamesList | None = None
    where: Where | None = None
    quantile: Quantile = 0.9
    random_state: int = Field(default=0, ge=0, lt=2**63, description="The seed of by=sample.")
    mixed_kinds: bool = False
    level: Level = 0.9


class Audience(Body):
    """Rows to rank for a feature."""

    feature: Name
    n: Count = 10
    rows: NamesList | None = None
    by: By = "mean"
    exclude_observed: bool = True
    exclude: NamesList | None = None
    where: Where | None = None
    quantile: Quantile = 0.9
    random_state: int = Field(default=0, ge=0, lt=2**63, description="The seed of by=sample.")
    level: Level = 0.9


class Suggest(Body):
    """Rows to observe next."""

    feature: Name
    n: Count = 10
    rows: NamesList | None = None


class Similar(Body):
    """Features to compare with a feature."""

    feature: Name
    n: Count = 10


class Explain(Body):
    """A prediction to explain."""

    row: Name | Observations
    feature: Name
    n: Count = 20


class TakeOver(Body):
    """A fitted model to serve."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4000), AfterValidator(_check_characters)]
