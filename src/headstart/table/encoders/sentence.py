"""Sentence encoders: models that turn a text into a vector of its meaning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.progress import Reporter
from headstart.table.encoders.vector_cache import Vector, VectorCache

BATCH = 256  # texts that are encoded at a time
MEMORY = 16_384  # vectors that an encoder keeps in memory

Run = Callable[[list[str]], Any]


class SentenceEncoder:
    """A model that encodes texts as vectors of unit length.

    Each distinct text is encoded once: the vectors are kept in memory and, between runs, on disk. The model
    itself is loaded when the first text is neither here nor there.

    Parameters
    ----------
    name : str
        The model's name or folder.
    sha256 : str
        The digest of the model's weights.
    load : callable
        Loads the model and returns a function that maps a list of n texts to an array (n, width).
    identity : str, optional
        A digest of all that determines the vectors, under which they are kept. The default is ``sha256``.
    cache : VectorCache, optional
        Where vectors are kept on disk. By default they are not.
    """

    def __init__(
        self,
        name: str,
        sha256: str,
        load: Callable[[], Run],
        identity: str | None = None,
        cache: VectorCache | None = None,
    ) -> None:
        self.name = name
        self.sha256 = sha256
        self.identity = identity or sha256
        self.cache = cache
        self._load = load
        self._run: Run | None = None
        self._memory: dict[str, Vector] = {}
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], reporter: Reporter | None = None) -> NDArray[np.float32]:
        """Encode texts.

        Parameters
        ----------
        texts : sequence of str
            At least one text.
        reporter : Reporter, optional
            Shows the progress. By default nothing is shown.

        Returns
        -------
        ndarray of shape (n, width)
            One vector of unit length per text.
        """
        with self._lock:
            vectors = self._vectors(list(dict.fromkeys(texts)), reporter or Reporter(quiet=True))
            return np.stack([vectors[text] for text in texts])

    def _vectors(self, texts: list[str], reporter: Reporter) -> dict[str, Vector]:
        vectors = {text: self._memory[text] for text in texts if text in self._memory}
        elsewhere = [text for text in texts if text not in vectors]
        if elsewhere and self.cache is not None:
            vectors |= self.cache.get(self.identity, elsewhere)
        # Texts of similar length share a batch, because each batch is as wide as its longest text.
        missing = sorted((text for text in elsewhere if text not in vectors), key=len, reverse=True)
        if missing:
            with reporter.bar("encoding texts", len(missing)) as bar:
                for start in range(0, len(missing), BATCH):
                    batch = missing[start : start + BATCH]
                    new = dict(zip(batch, self._encode_batch(batch), strict=True))
                    if self.cache is not None:
                        self.cache.put(self.identity, new)
                    vectors |= new
                    bar.step(advance=len(batch))
        self._remember({text: vectors[text] for text in elsewhere[-MEMORY:]})
        return vectors

    def _encode_batch(self, texts: list[str]) -> NDArray[np.float32]:
        if self._run is None:
            self._run = self._load()
        encoded = np.asarray(self._run(texts), dtype=np.float32)
        if encoded.ndim != 2 or len(encoded) != len(texts) or not np.isfinite(encoded).all():
            raise InputError(
                f"the sentence encoder {self.name!r} gave an array of shape {encoded.shape} for {len(texts)}"
                " texts; one vector of finite numbers per text is needed"
            )
        lengths = np.linalg.norm(encoded, axis=1, keepdims=True)
        lengths[lengths == 0] = 1.0
        unit: NDArray[np.float32] = encoded / lengths
        return unit

    def _remember(self, vectors: dict[str, Vector]) -> None:
        """Keep copies of vectors; the oldest make room. A view would keep its whole batch alive."""
        for text in list(self._memory)[: max(len(self._memory) + len(vectors) - MEMORY, 0)]:
            del self._memory[text]
        self._memory |= {text: vector.copy() for text, vector in vectors.items()}
