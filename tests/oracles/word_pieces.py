"""The vector of a text by its definition: a weighted mean of the vectors of its word pieces."""

from __future__ import annotations

import math
import unicodedata

from sklearn.utils import murmurhash3_32


def split_word(word: str, pieces: list[str]) -> list[str]:
    """Take the longest piece that the rest of the word starts with, until nothing is left."""
    found: list[str] = []
    rest = word
    while rest:
        prefix = "##" if found else ""
        same_place = [piece for piece in pieces if piece.startswith("##") == bool(prefix)]
        fitting = [piece for piece in same_place if rest.startswith(piece.removeprefix(prefix))]
        if fitting:
            longest = max(fitting, key=len)
            rest = rest[len(longest) - len(prefix) :]
        else:
            unknown = murmurhash3_32(rest[0], seed=0) % len(pieces)
            longest = rest[0] if rest[0] in pieces else pieces[unknown]
            rest = rest[1:]
        found.append(longest)
    return found


def mean_of_pieces(text: str, pieces: list[str], vectors, scale, weights) -> list[float]:  # type: ignore[no-untyped-def]
    """Add weight · scale · vector of every piece, and divide by the length of the sum."""
    plain = [c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn"]
    words, inside = [], False
    for c in plain:
        if c.isalnum() and inside:
            words[-1] += c
        elif c.isalnum():
            words.append(c)
        inside = c.isalnum()
    total = [0.0] * len(scale)
    for word in words:
        for piece in split_word(word, pieces):
            position = pieces.index(piece)
            for i in range(len(scale)):
                total[i] += float(weights[position]) * float(scale[i]) * float(vectors[position][i])
    length = math.sqrt(sum(number**2 for number in total))
    return [number / length for number in total] if length else total
