"""Turn texts into vectors by hashing their words; this needs no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\b\w+\b")


def hash_words(texts: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return signed counts of hashed words and pairs of words, scaled to unit length: (texts, size).

    The vectors are those of scikit-learn's ``HashingVectorizer`` with words and pairs of words as terms.

    >>> hash_words(["film film", ""], 4).astype(float).round(3).tolist()
    [[0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    numbers: dict[str, int] = {}  # of the terms
    lines, terms = [], []
    for line, text in enumerate(texts):
        words = _WORD.findall(text.lower())
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
