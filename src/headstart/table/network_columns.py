"""Metadata columns for networks that are trained with an adapter: tokens of texts, and images.

The encoded numbers of such a column mean nothing one by one: they are positions in a vocabulary, or pixels.
``Column.structure`` describes them to the network that reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field

from headstart.errors import InputError
from headstart.progress import Reporter
from headstart.table.columns import Column, Encoded, ImageShape, TokenSequence
from headstart.table.text_encoders import EncoderLike

MAX_TOKENS = 1024  # numbers per text; they are stored for every feature

MAX_WORDS = 10_000  # of a vocabulary, the most frequent ones

MAX_PIXELS = 16_384  # of an image, 128 × 128; they are stored for every feature

_DEFAULT_TOKENS = 64  # of a text, at most, unless the type says otherwise

_WORD = re.compile(r"\w+|[^\w\s]")

_PADDING, _UNKNOWN = 0, 1  # the tokens before the words of the vocabulary


class TokensColumn(Column):
    """Text as the positions of its words in a vocabulary, at most ``length`` of them.

    The vocabulary has the words and punctuation marks of at least two texts, in lower case. Token 0 fills up
    short texts, token 1 is any other word, and 2 is the first word of the vocabulary.
    """

    arrow: ClassVar[pa.DataType] = pa.string()
    expected: ClassVar[str] = "text"
    type: Literal["tokens"] = "tokens"
    words: tuple[str, ...] = Field(max_length=MAX_WORDS)
    length: int = Field(ge=1, le=MAX_TOKENS)

    @property
    def width(self) -> int:
        """Return the number of tokens per text."""
        return self.length

    @property
    def spec(self) -> str:
        """Return the type with the number of tokens."""
        return f"tokens:{self.length}"

    @property
    def structure(self) -> TokenSequence:
        """Return the length of texts and the number of different tokens."""
        return TokenSequence(self.length, len(self.words) + 2)

    @classmethod
    def fit(cls, name: str, column: pa.Array, length: int | None = None) -> Self:
        """Collect the vocabulary; by default ``length`` is that of the longest text, at most 64 tokens."""
        texts = [_WORD.findall(text.lower()) for text in column.drop_null().to_pylist()]
        counts = Counter(word for words in texts for word in set(words))
        repeated = sorted((-count, word) for word, count in counts.items() if count > 1)[:MAX_WORDS]
        vocabulary, longest = tuple(sorted(word for _, word in repeated)), max([1, *map(len, texts)])
        return cls(name=name, words=vocabulary, length=length or min(longest, _DEFAULT_TOKENS))

    @classmethod
    def fit_encoded(
        cls, name: str, column: pa.Array, argument: str, encoder: EncoderLike | None, reporter: Reporter
    ) -> tuple[Self, Encoded | None]:
        """Fit to the column of a table; ``argument`` is the number of tokens per text, or empty."""
        if encoder is not None or not argument:
            return super().fit_encoded(name, column, argument, encoder, reporter)
        if not (argument.isdecimal() and len(argument) <= 9 and 1 <= int(argument) <= MAX_TOKENS):
            raise InputError(
                f"metadata column {name!r}: {f'tokens:{argument}'[:60]!r} is not a type; tokens:32 reads 32"
                f" words of a text, at most {MAX_TOKENS}"
            )
        return cls.fit(name, cls.convert(name, column), int(argument)), None

    def encode(self, column: pa.Array) -> Encoded:
        """Return the tokens of texts: (n, length). A missing text gives zeros."""
        positions = {word: position for position, word in enumerate(self.words, start=2)}
        result = np.full((len(column), self.length), _PADDING, np.float32)
        for line, text in enumerate(column.to_pylist()):
            words = _WORD.findall((text or "").lower())[: self.length]
            result[line, : len(words)] = [positions.get(word, _UNKNOWN) for word in words]
        return result

    @classmethod
    def accept(cls, name: str, value: Any) -> str:
        """Accept text only."""
        if not isinstance(value, str):
            raise cls.refusal(name, value)
        return value


class ImageColumn(Column):
    """Grey images of one size: rows of numbers, divided by the largest of all images."""

    arrow: ClassVar[pa.DataType] = pa.list_(pa.list_(pa.float64()))
    expected: ClassVar[str] = "an image: a list of rows, each a list of equally many finite numbers"
    type: Literal["image"] = "image"
    height: int = Field(ge=0)
    columns: int = Field(ge=0)
    scale: float = Field(gt=0)

    @property
    def width(self) -> int:
        """Return the number of pixels."""
        return self.height * self.columns

    @property
    def structure(self) -> ImageShape:
        """Return the size of the images."""
        return ImageShape(self.height, self.columns)

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the size of the images and the largest number."""
        images = [cls._pixels(name, image) for image in column.drop_null().to_pylist()]
        shapes = sorted({image.shape for image in images})
        if len(shapes) > 1:
            raise InputError(
                f"metadata {name!r}: all images must have the same size; got {shapes[0]} and {shapes[1]}"
            )
        height, columns = shapes[0] if shapes else (0, 0)
        if height * columns > MAX_PIXELS:
            raise InputError(
                f"metadata {name!r}: images of {height} × {columns} pixels are too large; they may have"
                f" {MAX_PIXELS}. Use smaller ones, or a function that encodes them (encoders=)"
            )
        largest = max((float(np.abs(image).max(initial=0.0)) for image in images), default=1.0)
        return cls(name=name, height=height, columns=columns, scale=largest or 1.0)

    def encode(self, column: pa.Array) -> Encoded:
        """Return the pixels, row by row: (n, height × columns). A missing image gives zeros."""
        result = np.zeros((len(column), self.width), np.float32)
        for line, image in enumerate(column.to_pylist()):
            if image is not None:
                pixels = self._pixels(self.name, image)
                if pixels.shape != (self.height, self.columns):
                    raise InputError(
                        f"metadata {self.name!r} must be an image of {self.height} × {self.columns} numbers;"
                        f" got {pixels.shape[0]} × {pixels.shape[1]}"
                    )
                result[line] = np.clip(pixels / self.scale, -_MOST, _MOST).reshape(-1)
        return result

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept lists of lists of numbers."""
        pixel = column.type
        for _ in range(2):
            pixel = getattr(pixel, "value_type", pa.null())
        if pa.types.is_integer(pixel) or pa.types.is_floating(pixel):
            return column.cast(cls.arrow)
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> list[list[float]]:
        """Accept a list of lists, or an array of two dimensions."""
        pixels: list[list[float]] = cls._pixels(name, value).tolist()
        return pixels

    @classmethod
    def _pixels(cls, name: str, value: Any) -> Encoded:
        """Return an image as an array (height, columns)."""
        try:
            pixels = np.asarray(value)
        except (TypeError, ValueError):
            raise cls.refusal(name, value) from None
        if pixels.ndim != 2 or pixels.dtype.kind not in "iuf" or not np.isfinite(pixels).all():
            raise cls.refusal(name, value)
        return pixels.astype(np.float64)


_MOST = 1e6  # of a pixel, whose usual size is up to 1
