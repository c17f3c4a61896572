"""Compare networks on texts and images, trained with the hypernetwork, with frozen encoders.

    python benchmarks/ablation/compare_metadata.py digits questions titles --splits 0,1,2

``questions`` are the texts of Eedi's questions, and ``titles`` those of the small MovieLens. ``digits`` are
images of scikit-learn as the features of a made-up table; the ratings of a feature depend on its digit and on
a part of its own. All variants have the same backbone, and meta-training that stops early on features held
out from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ablation.protocol import STOPPED_EARLY, ResultFile, Split, load, measure, preset_of, run_command_line
from headstart.datasets import movielens_small
from headstart.experiments.presets import TUNED, Preset
from headstart.table import MetadataSchema, Table, text_encoders
from question_texts import question_texts

DIGITS, ROWS, FACTORS = 900, 400, 3  # of the made-up table


def described(table: Table, values: Sequence[object] | None, column_type: str) -> Table:
    """Return the table with ``values`` of this type as the only metadata of its features."""
    if values is None:
        return replace(table, metadata=None, schema=None)
    metadata = pa.table({"content": pa.array(values)})
    return replace(table, metadata=metadata, schema=MetadataSchema.fit(metadata, {"content": column_type}))


def popular_films() -> Table:
    """Return the small MovieLens with the films of at least 30 ratings, which are named by their titles."""
    films = movielens_small()
    return films.with_features(films.counts >= 30)


def film_titles(table: Table) -> list[str | None]:
    """Return the titles of films, without their years."""
    return [re.sub(r" \(\d{4}\)$", "", name) for name in table.features]


def digit_ratings() -> Table:
    """Return made-up ratings of 900 digits by 400 rows, a tenth of all cells.

    value = 3 + [u, 1]·(v of the digit + w of the feature) + noise, rounded and cut to 1..5. The three numbers
    of u have the standard deviation 1, those of v and the noise 0.5, those of w 0.25.
    """
    generator = np.random.default_rng(0)
    classes = load_digits().target[:DIGITS]
    by_digit = generator.normal(scale=0.5, size=(10, FACTORS + 1))
    features = by_digit[classes] + generator.normal(scale=0.25, size=(DIGITS, FACTORS + 1))
    people = np.concatenate([generator.normal(size=(ROWS, FACTORS)), np.ones((ROWS, 1))], axis=1)
    rows, columns = np.nonzero(generator.random((ROWS, DIGITS)) < 0.1)
    noise = generator.normal(scale=0.5, size=len(rows))
    values = 3 + (people[rows] * features[columns]).sum(1) + noise
    names = np.array([f"{i:03d}" for i in range(DIGITS)])
    values = np.clip(values.round(), 1, 5)
    ratings = pa.table({"row": rows.astype(str), "feature": names[columns], "value": values})
    return Table.read(ratings, kinds="rating:1:5")


def digit_variants(table: Table) -> dict[str, Table]:
    """Return the table with each description of the digits."""
    digits = load_digits()
    positions = [int(name) for name in table.features]
    images = digits.images[positions]
    return {
        "no metadata": described(table, None, ""),
        "pixels as plain numbers": described(table, images.reshape(len(images), -1).tolist(), "vector"),
        "network on the image": described(table, images.tolist(), "image"),
        "the digit itself": described(table, digits.target[positions].tolist(), "category"),
    }


def text_variants(table: Table, texts: list[str | None]) -> dict[str, Table]:
    """Return the table with each encoding of the texts; the sentence encoder if it is on this machine."""
    types = {"hashed words": "text:64", "network on the words": "tokens:32"}
    if text_encoders.why_no_default() is None:
        types["sentence encoder"] = f"text:{text_encoders.DEFAULT}"
    variants = {name: described(table, texts, column_type) for name, column_type in types.items()}
    return {"no metadata": described(table, None, ""), **variants}


def run(case: str, seed: int, folder: Path) -> None:
    """Compare the descriptions of one case on one split."""
    if case == "questions":
        table, preset, metric, stem = load("elearning"), preset_of("elearning"), "auroc", "elearning"
        variants = text_variants(table, question_texts(table))
    elif case == "titles":
        table, preset, metric, stem = popular_films(), small_preset(), "rmse", "titles"
        variants = text_variants(table, film_titles(table))
    else:
        table, preset, metric, stem = digit_ratings(), small_preset(), "rmse", "digits"
        variants = digit_variants(table)
    training = STOPPED_EARLY
    facts = {"dataset": case, "metric": metric, "study": "metadata networks"}
    settings = {"preset": preset.model_dump(mode="json"), "training": training.model_dump(mode="json")}
    results = ResultFile(f"metadata-networks-{case}", {**facts, "settings": settings})

    def scored(table: Table) -> dict[int, float]:
        checkpoint = folder / f"{stem}-{seed}-pvae.safetensors"
        split = Split.prepare(table, preset, seed, metatraining=training, checkpoint=checkpoint)
        return split.score(split.train(preset.chn), metric)

    measure(results, seed, {name: partial(scored, variant) for name, variant in variants.items()})


def small_preset() -> Preset:
    """Return the tuned preset of films with a smaller autoencoder, for small tables."""
    preset = TUNED["movielens"]
    small = preset.backbone.revised(latent=16, encoder_layers=(64,), decoder_layers=(64,))
    pretraining = preset.pretraining.revised(epochs=60)
    return preset.revised(name="digits", backbone=small, pretraining=pretraining)


def main() -> None:
    """Compare the cases and splits on the command line."""
    run_command_line(__doc__, run, ["digits", "questions", "titles"])


if __name__ == "__main__":
    main()
