"""Metadata columns for networks: tokens of texts, and images."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headstart import Table
from headstart.errors import InputError
from headstart.table import MetadataSchema
from headstart.table.columns import ImageShape, TokenSequence

TITLES = pa.table({"title": ["The Thing, again", "the fly", None, "The end! Fly"]})

SQUARES = [[[0, 1, 2], [3, 4, 5]], [[5, 4, 3], [2, 1, 10]], None]

IMAGES = pa.table({"icon": pa.array(SQUARES)})


def test_tokens_are_positions_in_the_words_of_two_texts() -> None:
    schema = MetadataSchema.fit(TITLES, {"title": "tokens"})
    title = schema.columns[0]
    assert title.words == ("fly", "the")  # once each: thing, again, end and the marks
    assert title.structure == TokenSequence(length=4, vocabulary=4)
    assert schema.encode_table(TITLES).tolist() == [[3, 1, 1, 1], [3, 2, 0, 0], [0, 0, 0, 0], [3, 1, 1, 2]]
    assert schema.encode([{"title": "FLY the new one, please"}, {}]).tolist() == [[2, 3, 1, 1], [0] * 4]
    again = MetadataSchema.model_validate_json(schema.model_dump_json())
    assert again == schema
    assert again.describe() == "title: tokens:4"


def test_the_number_of_tokens_can_be_given() -> None:
    assert MetadataSchema.fit(TITLES, {"title": "tokens:2"}).encode([{"title": "the fly the"}]).tolist() == [
        [3, 2]
    ]
    for wrong in ("tokens:0", "tokens:many", "tokens:9999"):
        with pytest.raises(InputError, match="tokens:32 reads 32 words of a text"):
            MetadataSchema.fit(TITLES, {"title": wrong})
    schema = MetadataSchema.fit(TITLES, {"title": "tokens"})
    with pytest.raises(InputError, match="metadata 'title' must be text; got 7"):
        schema.encode([{"title": 7}])
    with pytest.raises(InputError, match="metadata 'year' must be text"):
        MetadataSchema.fit(pa.table({"year": [1979, 1986]}), {"year": "tokens"})


def test_images_are_pixels_divided_by_the_largest() -> None:
    schema = MetadataSchema.fit(IMAGES, {"icon": "image"})
    assert schema.structures == (ImageShape(2, 3),)
    expected = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 10], [0] * 6]) / 10
    np.testing.assert_allclose(schema.encode_table(IMAGES), expected.astype(np.float32))
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(schema.encode([{"icon": array}, {"icon": None}]), expected[[0, 2]], rtol=1e-6)
    assert MetadataSchema.model_validate_json(schema.model_dump_json()) == schema


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2], [3]], "must be an image: a list of rows"),
        ([1, 2, 3], "must be an image: a list of rows"),
        ("picture", "must be an image: a list of rows"),
        ([[1.0, float("nan"), 2], [1, 2, 3]], "must be an image: a list of rows"),
        ([[1, 2], [3, 4]], "must be an image of 2 × 3 numbers; got 2 × 2"),
    ],
)
def test_other_values_are_no_images(value: object, message: str) -> None:
    schema = MetadataSchema.fit(IMAGES, {"icon": "image"})
    with pytest.raises(InputError, match=message):
        schema.encode([{"icon": value}])


def test_images_have_one_size_and_not_too_many_pixels() -> None:
    with pytest.raises(InputError, match=r"all images must have the same size; got \(1, 2\) and \(2, 1\)"):
        MetadataSchema.fit(pa.table({"icon": [[[1, 2]], [[1], [2]]]}), {"icon": "image"})
    with pytest.raises(InputError, match="images of 200 × 100 pixels are too large"):
        MetadataSchema.fit(pa.table({"icon": [np.zeros((200, 100)).tolist()]}), {"icon": "image"})
    with pytest.raises(InputError, match="'icon' must be an image"):
        MetadataSchema.fit(pa.table({"icon": ["a", "b"]}), {"icon": "image"})
    nothing = MetadataSchema.fit(pa.table({"icon": pa.nulls(2)}), {"icon": "image"})
    assert nothing.width == 0


def test_rows_have_no_such_columns() -> None:
    stars = pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1, 5]})
    people = pa.table({"row": ["a", "b"], "about": ["one", "two"]})
    with pytest.raises(InputError, match="row metadata has no columns of the type tokens:3"):
        Table.read(stars, row_metadata=people, row_metadata_types={"about": "tokens:3"})
