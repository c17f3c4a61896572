"""Encode texts without a model: mean vectors of word pieces, from a table in the package, and hashed words.

The table (``word_pieces.npz``) has a vector for each word piece of the sentence encoder all-MiniLM-L6-v2,
distilled from it. ``word_pieces.md`` beside it is its model card, and ``tools/make_word_pieces.py`` makes it.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NAME = "static"  # of this encoder in types and in saved columns

_FILE = "word_pieces.npz"

_WORD = re.compile(r"[^\W_]+")

_INNER = "##"  # starts a piece that continues a word

_HASHED = 128  # numbers of hashed words and pairs of words, which tell rare words and names apart

_HASHED_SHARE = 0.25  # of the squared length of a vector

_TERM = re.compile(r"\b\w+\b")  # of ``hash_words``


class StaticEmbedding:
    """A table of vectors of word pieces.

    Parameters
    ----------
    pieces : sequence of str
        The distinct word pieces; a piece that continues a word starts with ``##``.
    vectors : ndarray of shape (pieces, width)
        A vector for each piece, as whole numbers.
    scale : ndarray of shape (width,)
        The unit of each number.
    weights : ndarray of shape (pieces,)
        The weight of each piece in the mean; frequent pieces weigh less.

    Examples
    --------
    >>> pieces, vectors = ["film", "music", "##s"], np.array([[3, 0], [0, 4], [0, 0]])
    >>> table = StaticEmbedding(pieces, vectors, scale=np.ones(2), weights=np.array([1.0, 1.0, 0.5]))
    >>> table.split("films")
    ['film', '##s']
    >>> table.average(["Films", "film, music", ""]).astype(float).round(2).tolist()
    [[1.0, 0.0], [0.6, 0.8], [0.0, 0.0]]
    """

    def __init__(
        self,
        pieces: Sequence[str],
        vectors: NDArray[np.int8],
        scale: NDArray[np.float32],
        weights: NDArray[np.float32],
    ) -> None:
        self._vectors, self._scale = np.asarray(vectors), np.asarray(scale, np.float32)
        self._weights = np.asarray(weights, np.float32)
        self._pieces, self._longest = list(pieces), max(map(len, pieces))
        self._index = {piece: position for position, piece in enumerate(pieces)}
        self._split = lru_cache(maxsize=2**16)(self._positions)

    @property
    def width(self) -> int:
        """The length of the vectors."""
        return len(self._scale)

    def split(self, word: str) -> list[str]:
        """Return the pieces of a word, the longest possible ones from left to right."""
        return [self._pieces[position] for position in self._positions(word)]

    def average(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the weighted mean vector of the pieces of each text, scaled to unit length: (texts, width).

        A text without pieces gives zeros.
        """
        from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

        positions: list[int] = []
        ends = [0]
        for text in texts:
            for word in find_words(text):
                positions += self._split(word)
            ends.append(len(positions))
        used, columns = np.unique(np.array(positions, np.int64), return_inverse=True)
        counts = csr_array(
            (self._weights[used][columns].astype(np.float64), columns, ends), shape=(len(texts), len(used))
        )
        sums = np.asarray(counts @ (self._vectors[used] * self._scale.astype(np.float64)))
        lengths = np.sqrt((sums**2).sum(axis=1, keepdims=True))
        np.divide(sums, lengths, out=sums, where=lengths > 0)
        return sums.astype(np.float32)

    def _positions(self, word: str) -> list[int]:
        positions, start = [], 0
        while start < len(word):
            inner = _INNER if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                position = self._index.get(inner + word[start:end])
                if position is not None:
                    break
            else:
                position = self._index.get(word[start], self._substitute(word[start]))
            positions.append(position)
            start = end
        return positions

    def _substitute(self, character: str) -> int:
        """Return the position of a piece in place of a character that the table does not have.

        A hash chooses it, so texts that share such characters are similar.
        """
        return int(murmurhash3([character])[0]) % len(self._index)


def find_words(text: str) -> list[str]:
    """Return the words of a text, in lower case and without accents; punctuation marks separate words.

    >>> find_words("Amélie isn't here!")
    ['amelie', 'isn', 't', 'here']
    """
    decomposed = unicodedata.normalize("NFD", text.lower())
    return _WORD.findall("".join(c for c in decomposed if unicodedata.category(c) != "Mn"))


def encode_static(texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts by word pieces and hashed words: (texts, ``static_width()``).

    The vector of a text has unit length, or that of zeros if the text is empty.
    """
    meaning, words = _table().average(texts), hash_words(texts, _HASHED)
    return np.concatenate([(1 - _HASHED_SHARE) ** 0.5 * meaning, _HASHED_SHARE**0.5 * words], axis=1)


def static_width() -> int:
    """Return the width of the encoding of a text."""
    return _table().width + _HASHED


@lru_cache(maxsize=1)
def static_sha256() -> str:
    """Return the digest of the table, which identifies it in saved columns."""
    return hashlib.sha256(_content()).hexdigest()


@lru_cache(maxsize=1)
def _table() -> StaticEmbedding:
    with np.load(BytesIO(_content()), allow_pickle=False) as arrays:
        pieces = arrays["pieces"].tobytes().decode().split("\n")
        vectors = np.ascontiguousarray(arrays["vectors"].T)
        return StaticEmbedding(pieces, vectors, arrays["scale"], arrays["weights"])


def _content() -> bytes:
    return files("headstart.table").joinpath(_FILE).read_bytes()


def hash_words(texts: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return signed counts of hashed words and pairs of words, scaled to unit length: (texts, size).

    The vectors are those of scikit-learn's ``HashingVectorizer`` with words and pairs of words as terms.

    >>> hash_words(["film film", ""], 4).astype(float).round(3).tolist()
    [[0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    numbers: dict[str, int] = {}  # of the terms
    lines, terms = [], []
    for line, text in enumerate(texts):
        words = _TERM.findall(text.lower())
        for term in (*words, *map(" ".join, pairwise(words))):
            lines.append(line)
            terms.append(numbers.setdefault(term, len(numbers)))
    hashes = murmurhash3(list(numbers)).astype(np.int64)
    columns, signs = np.abs(hashes) % size, np.where(hashes >= 0, 1.0, -1.0)
    counts = np.zeros((len(texts), size))
    index = np.array(terms, dtype=np.int64)
    np.add.at(counts, (np.array(lines, dtype=np.int64), columns[index]), signs[index])
    lengths = np.sqrt((counts**2).sum(axis=1, keepdims=True))
    np.divide(counts, lengths, out=counts, where=lengths > 0)
    return counts.astype(np.float32)


def murmurhash3(texts: Sequence[str]) -> NDArray[np.int32]:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of the UTF-8 bytes of each text: (texts,).

    >>> murmurhash3(["", "hello", "hello, world"]).tolist()
    [0, 613153351, 345750399]
    """
    contents = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([len(content) for content in contents], dtype=np.int64)
    hashes = np.zeros(len(contents), dtype=np.uint32)
    for length in np.unique(lengths):  # texts of one length are hashed together
        members = np.flatnonzero(lengths == length)
        padded = np.zeros((len(members), -(-length // 4) * 4), dtype=np.uint8)
        joined = np.frombuffer(b"".join(contents[i] for i in members), dtype=np.uint8)
        padded[:, :length] = joined.reshape(len(members), length)
        blocks = padded.view("<u4").astype(np.uint32)
        state = np.zeros(len(members), dtype=np.uint32)
        for block in blocks.T[: length // 4]:
            state = _rotate(state ^ _scramble(block), 13) * np.uint32(5) + np.uint32(0xE6546B64)
        if length % 4:
            state ^= _scramble(blocks[:, -1])
        hashes[members] = _finalise(state ^ np.uint32(length))
    return hashes.view(np.int32)


def _scramble(block: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _rotate(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotate(numbers: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))


def _finalise(state: NDArray[np.uint32]) -> NDArray[np.uint32]:
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))
