"""Sentence encoders: finding them on this machine, running them in batches, keeping their vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headstart.table.encoders.sentence import SentenceEncoder

__all__ = ["EncoderLike", "SentenceEncoder"]

# A function that gives an array (n, width) for a list of n values, or the folder of a sentence encoder.
EncoderLike = Callable[[list[Any]], Any] | str | Path
