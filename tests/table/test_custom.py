"""Metadata columns that a function of the user's encodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headstart.errors import InputError, UnknownNameError
from headstart.table import MetadataSchema, Table

ANSWERS = pa.table({"row": ["a", "b", "a"], "feature": ["x", "y", "z"], "value": [1, 5, 2]})
POSTERS = pa.table(
    {"feature": ["x", "y", "z"], "poster": [b"\x01\x02", None, b"\x03\x04"], "year": [1, 2, 3]}
)


class Pixels:
    """Encodes bytes as numbers, and counts the values."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, values: list[Any]) -> np.ndarray:
        self.values += values
        return np.array([list(value) for value in values], dtype=float)


def test_a_function_encodes_a_column_once() -> None:
    pixels = Pixels()
    table = Table.read(ANSWERS, metadata=POSTERS, encoders={"poster": pixels}, quiet=True)
    assert "poster: custom" in table.schema.describe()
    scale = np.sqrt(30 / 4)
    expected = np.array([[1, 2], [0, 0], [3, 4]]) / scale
    np.testing.assert_allclose(table.encoded_metadata()[:, :2], expected, rtol=1e-6)
    np.testing.assert_allclose(table.with_features(["z"]).encoded_metadata()[0, :2], expected[2], rtol=1e-6)
    assert pixels.values == [b"\x01\x02", b"\x03\x04"]
    again = MetadataSchema.model_validate_json(table.schema.model_dump_json())
    assert again == table.schema
    np.testing.assert_allclose(
        again.encode([{"poster": b"\x03\x04"}, {}], {"poster": pixels})[:, :2], expected[[2, 1]], rtol=1e-6
    )


def test_values_come_in_batches() -> None:
    sizes: list[int] = []

    def lengths(values: list[str]) -> list[list[int]]:
        sizes.append(len(values))
        return [[len(value)] for value in values]

    column = pa.table({"path": [f"{i}.png" for i in range(600)]})
    assert MetadataSchema.fit(column, encoders={"path": lengths}).width == 1
    assert sizes == [256, 256, 88]


def test_a_column_without_values_has_no_numbers() -> None:
    schema = MetadataSchema.fit(pa.table({"path": pa.nulls(2, pa.string())}), encoders={"path": Pixels()})
    assert schema.width == 0


def test_missing_functions_and_wrong_ones_are_clear_errors() -> None:
    schema = MetadataSchema.fit(POSTERS.select(["poster"]), encoders={"poster": Pixels()})
    assert not schema.encode([{}]).any()
    with pytest.raises(
        InputError, match=r"'poster' is encoded by a function .* encoders=\{'poster': function\}"
    ):
        schema.encode([{"poster": b"\x01\x02"}])
    with pytest.raises(InputError, match="gave vectors of 3 numbers; those of the fitted column have 2"):
        schema.encode([{"poster": b"\x01\x02\x03"}], {"poster": Pixels()})
    with pytest.raises(InputError, match="encoded by a function"):
        Table.read(ANSWERS, metadata=POSTERS, metadata_types={"poster": "custom"})
    with pytest.raises(InputError, match="a column with an encoder has the type custom"):
        Table.read(ANSWERS, metadata=POSTERS, metadata_types={"year": "number"}, encoders={"year": Pixels()})
    with pytest.raises(UnknownNameError, match=r"'postr'; did you mean 'poster'\? \(in encoders=\)"):
        Table.read(ANSWERS, metadata=POSTERS, encoders={"postr": Pixels()})
    with pytest.raises(InputError, match="must be a function; got 'folder'"):
        Table.read(ANSWERS, metadata=POSTERS, encoders={"poster": "folder"})
    with pytest.raises(InputError, match="encoders= was given, but there are no columns"):
        Table.read(ANSWERS, encoders={"poster": Pixels()})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda values: 1 / 0, "its encoder failed: ZeroDivisionError"),
        (lambda values: [[1.0]], r"must return an array \(2, width\)"),
        (lambda values: [1.0, 2.0], r"got the shape \(2,\)"),
        (lambda values: [[1.0], [float("inf")]], "finite"),
        (lambda values: [["a"], ["b"]], "its encoder failed: ValueError"),
    ],
)
def test_what_a_function_returns_is_checked(function: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table.read(ANSWERS, metadata=POSTERS, encoders={"poster": function}, quiet=True)
