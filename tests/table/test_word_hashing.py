"""Hashed words are those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils import murmurhash3_32

from headstart.table.text_vectors import hash_words, murmurhash3

TEXTS = [
    "", " ", "a", "The Good, the Bad and the Ugly", "Amélie Ame\u0301lie", "İstanbul", "七人の侍 (1954)",
    "the the the the", "snake_case x2 3.5", "\U0001f3ac film\n\tnoir", "a" * 1000, "word " * 300,
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 64, 1024])
def test_vectors_are_those_of_the_hashing_vectorizer(size: int) -> None:
    generator = np.random.default_rng(0)
    words = ["w" + "x" * int(n) + str(n) for n in generator.integers(0, 40, 500)]
    texts = TEXTS + [" ".join(generator.choice(words, n)) for n in generator.integers(0, 30, 200)]
    vectorizer = HashingVectorizer(
        n_features=size, ngram_range=(1, 2), token_pattern=r"\b\w+\b", norm="l2", dtype=np.float32
    )
    np.testing.assert_array_equal(hash_words(texts, size), vectorizer.transform(texts).toarray())
    assert hash_words([], size).shape == (0, size)


def test_hashes_are_those_of_murmurhash3() -> None:
    texts = [*TEXTS, *("abcdefghijk"[:n] for n in range(12))]
    assert murmurhash3(texts).tolist() == [murmurhash3_32(text, seed=0) for text in texts]
