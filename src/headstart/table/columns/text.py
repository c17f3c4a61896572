"""Text columns."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.errors import InputError
from headstart.progress import Reporter
from headstart.table.columns.column import Column, Encoded
from headstart.table.encoders import EncoderLike, SentenceEncoder, finding

MAX_SIZE = 16_384  # hash buckets per text; they are stored for every feature


class TextColumn(Column):
    """Text as a vector of ``size`` numbers with unit length: by a sentence encoder, or of hashed words.

    The column names the encoder and the digest of its weights; the encoder itself is not a part of it.
    Without an encoder, words and pairs of words are hashed. No text gives zeros.
    """

    arrow: ClassVar[pa.DataType] = pa.string()
    expected: ClassVar[str] = "text"
    type: Literal["text"] = "text"
    size: int = Field(default=64, gt=0)
    encoder: str | None = None  # the name or the folder of the model
    encoder_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @property
    def width(self) -> int:
        """Return the width of the vectors."""
        return self.size

    @property
    def takes(self) -> Literal["folder"] | None:
        """Return "folder" if a sentence encoder encodes this column."""
        return None if self.encoder is None else "folder"

    @property
    def spec(self) -> str:
        """Return the type with the encoder or the number of hash buckets."""
        return f"text:{self.encoder or self.size}"

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Return a column of hashed words with default settings; hashing learns nothing."""
        return cls(name=name)

    @classmethod
    def fit_encoded(
        cls, name: str, column: pa.Array, argument: str, encoder: EncoderLike | None, reporter: Reporter
    ) -> tuple[Self, Encoded | None]:
        """Choose the encoder, and encode the texts if it is a model.

        ``argument`` is a number of hash buckets, the name or folder of a model, or empty for the default
        model if it is on this machine.
        """
        if encoder is not None:
            return super().fit_encoded(name, column, "", encoder, reporter)
        texts = cls.convert(name, column)
        if argument.isdecimal():
            return cls(name=name, size=_size(name, argument)), None
        if not argument and finding.why_no_default() is not None:
            return cls(name=name), None
        try:
            found = finding.find_encoder(argument or finding.DEFAULT)
        except InputError as error:
            raise InputError(f"metadata column {name!r}, type text:{argument}: {error}") from None
        lines, given = _present(texts)
        vectors = _encoded(name, found, given or ["any"], reporter)  # any text shows the width
        fitted = cls(name=name, size=vectors.shape[1], encoder=found.name, encoder_sha256=found.sha256)
        return fitted, fitted._placed(vectors[: len(given)], lines, len(texts))

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
            return self._hashed(column)
        found = self._find(str(encoder or self.encoder))
        return self._placed(_encoded(self.name, found, texts, reporter), lines, len(column))

    @classmethod
    def accept(cls, name: str, value: Any) -> str:
        """Accept text only."""
        if not isinstance(value, str):
            raise cls.refusal(name, value)
        return value

    def describe(self) -> str:
        """Return name, type and encoder: ``title: text (all-MiniLM-L6-v2)``."""
        return f"{self.name}: text ({self.encoder or 'hashed words'})"

    def _find(self, model: str) -> SentenceEncoder:
        try:
            found = finding.find_encoder(model)
        except InputError as error:
            raise InputError(
                f"metadata {self.name!r} cannot be encoded here: {error}, as encoders={{{self.name!r}:"
                f" FOLDER}}. The SHA-256 of its weights must be {self.encoder_sha256}"
            ) from None
        if found.sha256 != self.encoder_sha256:
            raise InputError(
                f"metadata {self.name!r} was encoded by {self.encoder!r}, whose weights have the SHA-256"
                f" {self.encoder_sha256}; those of {model!r} on this machine have {found.sha256}, so their"
                f" vectors would mean something else. Pass the folder of the former as"
                f" encoders={{{self.name!r}: FOLDER}}"
            )
        return found

    def _placed(self, vectors: Encoded, lines: list[int], height: int) -> Encoded:
        result = np.zeros((height, self.size), np.float32)
        result[lines] = vectors
        return result

    def _hashed(self, column: pa.Array) -> Encoded:
        from sklearn.feature_extraction.text import HashingVectorizer  # slow to import, rarely needed

        vectorizer = HashingVectorizer(
            n_features=self.size, ngram_range=(1, 2), token_pattern=r"\b\w+\b", norm="l2", dtype=np.float32
        )
        hashed: Encoded = vectorizer.transform(pc.fill_null(column, "").to_pylist()).toarray()
        return hashed


def _encoded(name: str, encoder: SentenceEncoder, texts: list[str], reporter: Reporter) -> Encoded:
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
