"""Texts as weighted means of word pieces, and hashed words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.word_pieces import mean_of_pieces, split_word

from headstart.errors import InputError
from headstart.table import MetadataSchema
from headstart.table.text_vectors import (
    StaticEmbedding,
    _table,
    encode_static,
    find_words,
    hash_words,
    static_width,
)

PIECES = ["a", "un", "##un", "##aff", "##able", "affable", "film", "##s", "'", "é", "七", "##人"]


def small_table() -> StaticEmbedding:
    generator = np.random.default_rng(0)
    vectors = generator.integers(-9, 9, (len(PIECES), 5)).astype(np.int8)
    return StaticEmbedding(PIECES, vectors, generator.random(5), generator.random(len(PIECES)))


def test_a_word_is_split_into_the_longest_known_pieces() -> None:
    table = small_table()
    assert table.split("unaffable") == ["un", "##aff", "##able"]
    assert table.split("affable") == ["affable"]
    assert table.split("films") == ["film", "##s"]
    assert table.split("七人") == ["七", "##人"]
    assert table.split("a七") == ["a", "七"]  # no piece for the inside of a word: that of its start
    assert table.split("") == []


@given(st.text(alphabet="aufflimsbe'é七人xyz ", max_size=30))
def test_vectors_are_those_of_the_slow_version(text: str) -> None:
    table = small_table()
    for word in find_words(text):
        assert table.split(word) == split_word(word, PIECES)
    expected = mean_of_pieces(text, PIECES, table._vectors, table._scale, table._weights)
    np.testing.assert_allclose(table.average([text, "a"])[0], expected, atol=1e-6)


@given(st.lists(st.text(max_size=40), max_size=4))
def test_any_text_has_a_vector_of_length_one_or_zero(texts: list[str]) -> None:
    vectors = encode_static(texts)
    assert vectors.shape == (len(texts), static_width())
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert ((lengths < 1 + 1e-5) & ((lengths > 0.4) | (lengths == 0))).all()
    for text, length in zip(texts, lengths, strict=True):
        assert length > 0 or not find_words(text)
        assert length == 0 or any(c.isalnum() or c == "_" for c in text)
    np.testing.assert_array_equal(np.stack([encode_static([text])[0] for text in texts] or [vectors]).reshape(
        vectors.shape), vectors)  # fmt: skip


def test_similar_meanings_have_similar_vectors() -> None:
    texts = ["an amusing comedy", "a funny film", "interest rates of a bank", "loans and mortgages"]
    vectors = encode_static(texts)
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > max(similarity[0, 2], similarity[0, 3]) + 0.1
    assert similarity[2, 3] > max(similarity[2, 0], similarity[2, 1]) + 0.1


def test_case_and_accents_do_not_change_the_pieces() -> None:
    np.testing.assert_array_equal(*_table().average(["Amélie À PARIS", "amelie a paris"]))


def test_characters_that_the_table_lacks_tell_texts_apart() -> None:
    first, again, other = _table().average(["ꦗꦮ", "ꦗꦮ", "ꦱꦶ"])
    np.testing.assert_array_equal(first, again)
    assert first @ other < 0.9


def test_hashed_words_are_a_part_of_the_vector() -> None:
    texts = ["Toy Story", "Toy Story 2"]
    hashed = encode_static(texts)[:, _table().width :]
    np.testing.assert_allclose(hashed, 0.5 * hash_words(texts, hashed.shape[1]), rtol=1e-6)


def test_a_column_is_saved_with_the_digest_of_the_table() -> None:
    texts = pa.table({"title": pa.array(["to be", None, " ", "or not", *map(str, range(64))])})
    schema = MetadataSchema.fit(texts, {"title": "text"})
    assert schema.describe() == "title: text (word pieces)"
    assert MetadataSchema.fit(texts.slice(0, 60), {"title": "text"}).columns[0].spec == "text:64"
    assert schema.columns[0].spec == "text:static"
    assert MetadataSchema.fit(texts, {"title": "text:static"}) == schema
    again = MetadataSchema.model_validate_json(schema.model_dump_json())
    encoded = again.encode_table(texts)
    np.testing.assert_array_equal(encoded[[0, 3]], encode_static(["to be", "or not"]))
    assert not encoded[1:3].any()
    column = schema.columns[0].revised(encoder_sha256="0" * 64)
    with pytest.raises(InputError, match="'title' was encoded by the word pieces of another version"):
        column.encode(pa.array(["to be"]))
    assert not column.encode(pa.array([None, " "], pa.string())).any()
    with pytest.raises(InputError, match="'title' takes no encoder; its type is text:static"):
        schema.check_encoders({"title": "folder"})


def test_the_table_is_read_only_when_a_text_is_encoded() -> None:
    program = (
        "import headstart, headstart.table.vector_columns, headstart.table.text_vectors as s\n"
        "assert s._table.cache_info().currsize == 0\n"
        "s.encode_static(['a'])\n"
        "assert s._table.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_file_is_small() -> None:
    import headstart.table

    path = Path(headstart.table.__file__).with_name("word_pieces.npz")
    assert path.stat().st_size < 1_500_000
    assert path.with_name("word_pieces.md").exists()
