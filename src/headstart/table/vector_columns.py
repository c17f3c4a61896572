"""Metadata columns that become vectors: texts, vectors, values that a function encodes, tokens and images.

Networks that are trained with an adapter read tokens and images. The encoded numbers of such a column mean
nothing one by one: they are positions in a vocabulary, or pixels. ``Column.structure`` describes them to the
network.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.errors import InputError
from headstart.progress import Reporter
from headstart.table import text_encoders, text_vectors
from headstart.table.columns import Column, Encoded, ImageShape, TokenSequence
from headstart.table.text_encoders import BATCH, EncoderLike, SentenceEncoder
from headstart.table.text_vectors import hash_words

MAX_SIZE = 16_384  # hash buckets per text; they are stored for every feature

# With fewer texts, word pieces often seem useful by chance: words are hashed by default.
_MIN_TEXTS_FOR_PIECES = 64

_MAX_NUMBER = 1e6  # of an encoded number or a pixel, whose usual size is 1

MAX_TOKENS = 1024  # numbers per text; they are stored for every feature

MAX_WORDS = 10_000  # of a vocabulary, the most frequent ones

MAX_PIXELS = 16_384  # of an image, 128 × 128; they are stored for every feature

_DEFAULT_TOKENS = 64  # of a text, at most, unless the type says otherwise

_TOKEN = re.compile(r"\w+|[^\w\s]")

_PADDING, _UNKNOWN = 0, 1  # the tokens before the words of the vocabulary


class TextColumn(Column):
    """Text as a vector of ``size`` numbers: by a sentence encoder, by word pieces, or of hashed words.

    A vector has unit length. The column names the encoder and the digest of its weights; a sentence encoder
    itself is not a part of it. The encoder ``static`` is the table of word pieces in this package. Without an
    encoder, words and pairs of words are hashed. No text gives zeros.
    """

    arrow: ClassVar[pa.DataType] = pa.string()
    expected: ClassVar[str] = "text"
    type: Literal["text"] = "text"
    size: int = Field(default=64, gt=0)
    encoder: str | None = None  # "static", or the name or the folder of a model
    encoder_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self.size

    @property
    def takes(self) -> Literal["folder"] | None:
        """A folder, if a sentence encoder encodes this column."""
        return None if self.encoder in (None, text_vectors.NAME) else "folder"

    @property
    def spec(self) -> str:
        """The type with the encoder or the number of hash buckets."""
        return f"text:{self.encoder or self.size}"

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Return a column of word pieces, which learn nothing from the texts."""
        return cls(
            name=name,
            size=text_vectors.static_width(),
            encoder=text_vectors.NAME,
            encoder_sha256=text_vectors.static_sha256(),
        )

    @classmethod
    def fit_encoded(
        cls, name: str, column: pa.Array, argument: str, encoder: EncoderLike | None, reporter: Reporter
    ) -> tuple[Self, Encoded | None]:
        """Choose the encoder, and encode the texts if it is a model.

        ``argument`` is a number of hash buckets, "static", the name or folder of a model, or empty for the
        default model if it is on this machine, and otherwise "static" for many texts or 64 for few.
        """
        if encoder is not None:
            return super().fit_encoded(name, column, "", encoder, reporter)
        texts = cls.convert(name, column)
        if argument.isdecimal():
            return cls(name=name, size=_size(name, argument)), None
        if argument == text_vectors.NAME or not (argument or text_encoders.why_no_default() is None):
            few = not argument and len(texts) - texts.null_count < _MIN_TEXTS_FOR_PIECES
            return cls(name=name) if few else cls.fit(name, texts), None
        try:
            sentence_encoder = text_encoders.find_encoder(argument or text_encoders.DEFAULT)
        except InputError as error:
            raise InputError(f"metadata column {name!r}, type text:{argument}: {error}") from None
        lines, present = _present(texts)
        # Any text shows the width.
        vectors = _encode_texts(name, sentence_encoder, present or ["any"], reporter)
        fitted = cls(
            name=name,
            size=vectors.shape[1],
            encoder=sentence_encoder.name,
            encoder_sha256=sentence_encoder.sha256,
        )
        return fitted, fitted._place(vectors[: len(present)], lines, len(texts))

    def encode(self, column: pa.Array) -> Encoded:
        """Encode texts: (n, size)."""
        return self.encode_using(column, None, Reporter(quiet=True))

    def encode_using(self, column: pa.Array, encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode texts: (n, size). ``encoder`` is the model's folder, if it is not where it was."""
        column = self.convert(self.name, column)
        lines, texts = _present(column)
        if not texts:
            return np.zeros((len(column), self.size), np.float32)
        if self.encoder is None:
            vectors = hash_words(texts, self.size)
        elif self.encoder == text_vectors.NAME:
            self._require_table()
            vectors = text_vectors.encode_static(texts)
        else:
            sentence_encoder = self._find(None if encoder is None else str(encoder))
            vectors = _encode_texts(self.name, sentence_encoder, texts, reporter)
        return self._place(vectors, lines, len(column))

    @classmethod
    def accept(cls, name: str, value: Any) -> str:
        """Accept text only."""
        if not isinstance(value, str):
            raise cls.refusal(name, value)
        return value

    def describe(self) -> str:
        """Return name, type and encoder: ``title: text (all-MiniLM-L6-v2)``."""
        encoder = "word pieces" if self.encoder == text_vectors.NAME else self.encoder
        return f"{self.name}: text ({encoder or 'hashed words'})"

    def _require_table(self) -> None:
        """Refuse to encode texts by another table of word pieces than that of the fitted column."""
        if text_vectors.static_sha256() != self.encoder_sha256:
            raise InputError(
                f"metadata {self.name!r} was encoded by the word pieces of another version of headstart, so"
                " the vectors of this version would mean something else: use that version, or fit again"
            )

    def _find(self, model: str | None) -> SentenceEncoder:
        """Return the encoder ``model`` of the user; if it is None, the one by which texts were encoded."""
        try:
            if model is None:
                present = text_encoders.find_saved_encoder(str(self.encoder))
            else:
                present = text_encoders.find_encoder(model)
        except InputError as error:
            raise InputError(
                f"metadata {self.name!r} cannot be encoded here: {error}, as encoders={{{self.name!r}:"
                f" FOLDER}}. The SHA-256 of its weights must be {self.encoder_sha256}"
            ) from None
        if present.sha256 != self.encoder_sha256:
            raise InputError(
                f"metadata {self.name!r} was encoded by {self.encoder!r}, whose weights have the SHA-256"
                f" {self.encoder_sha256}; those of {present.name!r} on this machine have {present.sha256}, so"
                f" their vectors would mean something else. Pass the folder of the former as"
                f" encoders={{{self.name!r}: FOLDER}}"
            )
        return present

    def _place(self, vectors: Encoded, lines: list[int], height: int) -> Encoded:
        result = np.zeros((height, self.size), np.float32)
        result[lines] = vectors
        return result


def _encode_texts(name: str, encoder: SentenceEncoder, texts: list[str], reporter: Reporter) -> Encoded:
    try:
        return encoder.encode(texts, reporter)
    except InputError as error:
        raise InputError(f"metadata {name!r}: {error}") from error


def _present(column: pa.Array) -> tuple[list[int], list[str]]:
    """Return the lines that have a text, and their texts."""
    pairs = [(line, text) for line, text in enumerate(column.to_pylist()) if text and not text.isspace()]
    return [line for line, _ in pairs], [text for _, text in pairs]


def _size(name: str, argument: str) -> int:
    digits = argument.lstrip("0")
    if not digits:
        raise InputError(f"metadata column {name!r}: text:{argument} is not a type; text:128 has 128 buckets")
    if len(digits) > 9 or int(digits) > MAX_SIZE:
        raise InputError(
            f"metadata column {name!r}: {f'text:{argument}'[:60]!r} is too large; at most text:{MAX_SIZE}"
        )
    return int(digits)


class VectorColumn(Column):
    """A list of ``size`` numbers, such as a sentence embedding, divided by one common scale."""

    arrow: ClassVar[pa.DataType] = pa.list_(pa.float64())
    expected: ClassVar[str] = "a list of finite numbers"
    type: Literal["vector"] = "vector"
    size: int
    scale: float

    @property
    def width(self) -> int:
        """The length of the vectors."""
        return self.size

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the length, and the root mean square of the numbers as the scale."""
        lengths = pc.unique(column.value_lengths().drop_null()).to_pylist()
        if len(lengths) > 1:
            raise InputError(
                f"metadata {name!r}: all vectors must have the same length; got lengths {sorted(lengths)[:5]}"
            )
        values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
        largest = float(np.abs(values).max(initial=0.0)) or 1.0  # so that no square is too large or small
        scale = largest * float(np.sqrt(np.mean((values / largest) ** 2))) if len(values) else 1.0
        return cls(name=name, size=lengths[0] if lengths else 0, scale=scale or 1.0)

    def encode(self, column: pa.Array) -> Encoded:
        """Divide by the scale: (n, size), at most a million of it. A missing vector gives zeros."""
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        wrong = pc.not_equal(column.value_lengths(), self.size)
        if pc.any(wrong, min_count=0).as_py():
            length = column.value_lengths().filter(wrong)[0].as_py()
            raise InputError(f"metadata {self.name!r} must be a list of {self.size} numbers; got {length}")
        result = np.zeros((len(column), self.size), np.float32)
        values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            scaled = np.clip(values / self.scale, -_MAX_NUMBER, _MAX_NUMBER)
        result[valid] = scaled.reshape(int(valid.sum()), self.size)
        return result

    def decode(self, numbers: Encoded) -> list[float] | None:
        """Return the vector, in single precision; None if it is missing."""
        return (numbers * self.scale).tolist() if numbers.any() else None

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept lists of finite numbers."""
        column = super().convert(name, column)
        values = pc.list_flatten(column)
        if values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py():
            bad = values.filter(pc.invert(pc.fill_null(pc.is_finite(values), False)))
            raise cls.refusal(name, bad[0].as_py())
        return column

    @classmethod
    def accept(cls, name: str, value: Any) -> list[float]:
        """Accept a list, tuple or one-dimensional array of finite numbers."""
        try:
            vector = np.asarray(None if isinstance(value, (bytes, bytearray, memoryview)) else value)
            if (
                vector.ndim == 1
                and (vector.dtype.kind in "iuf" or not len(vector))
                and np.isfinite(vector).all()
            ):
                return vector.astype(np.float64).tolist()  # type: ignore[no-any-return]
        except (TypeError, ValueError):
            pass
        raise cls.refusal(name, value)


class CustomColumn(Column):
    """Values of any type, encoded as ``size`` numbers by a function of the user's, divided by one scale.

    The function maps a list of at most 256 values to an array (n, size). It is not a part of the column
    and is never saved: ``Headstart.load`` takes it again. A missing value gives zeros.
    """

    arrow: ClassVar[pa.DataType] = pa.null()
    expected: ClassVar[str] = "a value that its encoder takes"
    type: Literal["custom"] = "custom"
    size: int
    scale: float

    @property
    def width(self) -> int:
        """The length of the vectors."""
        return self.size

    @property
    def takes(self) -> Literal["function"]:
        """A function."""
        return "function"

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Refuse: there is nothing to fit without the function."""
        raise _no_function(name)

    @classmethod
    def fit_encoded(
        cls, name: str, column: pa.Array, argument: str, encoder: EncoderLike | None, reporter: Reporter
    ) -> tuple[Self, Encoded | None]:
        """Encode the column; find the length of the vectors, and the root mean square as the scale."""
        if argument:
            return super().fit_encoded(name, column, argument, None, reporter)
        values, valid = column.drop_null().to_pylist(), column.is_valid().to_numpy(zero_copy_only=False)
        if not values:
            return cls(name=name, size=0, scale=1.0), np.zeros((len(column), 0), np.float32)
        vectors = _encode_custom(name, values, encoder, reporter)
        scale = float(np.sqrt(np.mean(np.square(vectors, dtype=np.float64)))) if vectors.size else 0.0
        fitted = cls(name=name, size=vectors.shape[1], scale=scale or 1.0)
        result = np.zeros((len(column), fitted.size), np.float32)
        result[valid] = vectors / fitted.scale
        return fitted, result

    def encode(self, column: pa.Array) -> Encoded:
        """Encode a column without values; others need the function."""
        return self.encode_using(column, None, Reporter(quiet=True))

    def encode_using(self, column: pa.Array, encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode the column of a table: (n, size)."""
        return self.encode_values(column.to_pylist(), encoder, reporter)

    def encode_values(self, values: list[Any], encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode values, None if missing: (n, size)."""
        result = np.zeros((len(values), self.size), np.float32)
        present = [i for i, value in enumerate(values) if value is not None]
        if not present:
            return result
        vectors = _encode_custom(self.name, [values[i] for i in present], encoder, reporter)
        if vectors.shape[1] != self.size:
            raise InputError(
                f"metadata {self.name!r}: the encoder gave vectors of {vectors.shape[1]} numbers; those of"
                f" the fitted column have {self.size}. Pass the same function as before"
            )
        result[present] = vectors / self.scale
        return result

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG003
        """Accept anything."""
        return column

    @classmethod
    def accept(cls, name: str, value: Any) -> Any:  # noqa: ARG003
        """Accept anything."""
        return value


def _encode_custom(name: str, values: list[Any], encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
    """Call the function in batches and check its results: (n, width)."""
    if not callable(encoder):
        raise _no_function(name)
    parts: list[Encoded] = []
    with reporter.bar(f"encoding {name}", len(values)) as bar:
        for start in range(0, len(values), BATCH):
            batch = values[start : start + BATCH]
            try:
                part = np.asarray(encoder(batch), dtype=np.float32)
            except Exception as error:  # the user's function may raise anything
                raise InputError(
                    f"metadata {name!r}: its encoder failed: {type(error).__name__}: {error}"
                ) from error
            shaped = (
                part.ndim == 2
                and len(part) == len(batch)
                and part.shape[1:] == (parts or [part])[0].shape[1:]
            )
            if not shaped or not np.isfinite(part).all():
                raise InputError(
                    f"metadata {name!r}: its encoder must return an array ({len(batch)}, width) of finite"
                    f" numbers for {len(batch)} values, of one width; got the shape {part.shape}"
                )
            parts.append(part)
            bar.step(advance=len(batch))
    return np.concatenate(parts)


def _no_function(name: str) -> InputError:
    return InputError(
        f"metadata {name!r} is encoded by a function of the user's, which is not saved with a model: pass it"
        f" as encoders={{{name!r}: function}} to Table.read, Headstart.load or set_encoders"
    )


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
        """The number of tokens of each text."""
        return self.length

    @property
    def spec(self) -> str:
        """The type with the number of tokens."""
        return f"tokens:{self.length}"

    @property
    def structure(self) -> TokenSequence:
        """The length of texts and the number of different tokens."""
        return TokenSequence(self.length, len(self.words) + 2)

    @classmethod
    def fit(cls, name: str, column: pa.Array, length: int | None = None) -> Self:
        """Collect the vocabulary; the default ``length`` is the longest text's, at most 64 tokens."""
        texts = [_TOKEN.findall(text.lower()) for text in column.drop_null().to_pylist()]
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
            words = _TOKEN.findall((text or "").lower())[: self.length]
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
        """The number of pixels."""
        return self.height * self.columns

    @property
    def structure(self) -> ImageShape:
        """The size of the images."""
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
                result[line] = np.clip(pixels / self.scale, -_MAX_NUMBER, _MAX_NUMBER).reshape(-1)
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
