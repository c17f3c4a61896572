"""Synthetic tables of known structure, for tests, benchmarks and examples.

Every cell is observed with the same probability, ``density``. A row without observations is left out.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table import Table

GENRES = ("Action", "Comedy", "Crime", "Drama", "Family", "Horror", "Romance", "Sci-Fi")

SUBJECTS = ("Algebra", "Data", "Geometry", "Number", "Probability")


def synthetic_ratings(
    rows: int = 500, features: int = 200, density: float = 0.2, rank: int = 4, seed: int = 0
) -> Table:
    """Generate ratings from 1 to 5 of low rank. The genres of a feature explain a part of its loadings.

    >>> synthetic_ratings(100, 50, seed=1).kinds
    Kinds(50 rating:1:5)
    """
    _check(rows, features, density)
    rng = np.random.default_rng(seed)
    labels, loadings = _genres(rng, features, rank)
    quality = 3.5 + 0.5 * rng.normal(size=features) + 0.3 * (labels @ rng.normal(size=len(GENRES)))
    factors, leniency = rng.normal(size=(rows, rank)), 0.4 * rng.normal(size=rows)
    at_row, at_feature = _observed(rng, rows, features, density)
    affinity = np.einsum("nr,nr->n", factors[at_row], loadings[at_feature]) / np.sqrt(rank)
    score = quality[at_feature] + leniency[at_row] + 0.7 * affinity + 0.4 * rng.normal(size=len(at_row))
    metadata = _film_metadata(rng, labels)
    return _table(
        "film", at_row, at_feature, np.clip(np.rint(score), 1, 5), rows, features, metadata, "rating:1:5"
    )


def _genres(
    rng: np.random.Generator, features: int, rank: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Draw the genres of films (features, genres), and loadings that they explain a part of."""
    labels = rng.random((features, len(GENRES))) < 0.25
    labels[np.arange(features), rng.integers(len(GENRES), size=features)] = True  # at least one each
    tastes = rng.normal(size=(len(GENRES), rank))
    of_genres = labels @ tastes / np.sqrt(labels.sum(1, keepdims=True))
    return labels, of_genres + 0.5 * rng.normal(size=(features, rank))


def _film_metadata(rng: np.random.Generator, labels: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Return the genres of films, and draw their years."""
    return {
        "genres": pa.array([[GENRES[i] for i in np.flatnonzero(line)] for line in labels]),
        "year": pa.array(rng.integers(1950, 2025, size=len(labels))),
    }


def synthetic_clicks(
    rows: int = 500,
    features: int = 200,
    density: float = 0.1,
    rank: int = 4,
    seed: int = 0,
    *,
    counts: bool = False,
) -> Table:
    """Generate clicks, whose probabilities depend on the row, on the feature and on the factors of both.

    The genres of a feature explain a part of its loadings. ``density`` is about the share of cells with a
    click. With ``counts``, values are numbers of clicks, otherwise 1.

    >>> synthetic_clicks(100, 50, seed=1).kinds
    Kinds(50 click)
    """
    _check(rows, features, density)
    rng = np.random.default_rng(seed)
    labels, loadings = _genres(rng, features, rank)
    popularity, activity = 0.7 * rng.normal(size=features), 0.5 * rng.normal(size=(rows, 1))
    affinity = rng.normal(size=(rows, rank)) @ loadings.T / np.sqrt(rank)
    rate = np.exp(popularity + activity + affinity)
    rate *= density / rate.mean()
    chance = 1 - np.exp(-rate)
    at_row, at_feature = np.nonzero(rng.random((rows, features)) < chance)
    values = 1.0 + counts * rng.poisson(10 * rate[at_row, at_feature])
    metadata = _film_metadata(rng, labels)
    return _table("film", at_row, at_feature, values, rows, features, metadata, "click")


def synthetic_responses(rows: int = 500, features: int = 120, density: float = 0.4, seed: int = 0) -> Table:
    """Generate right (1) and wrong (0) answers from a two-parameter item-response model.

    P(right) = sigmoid(discrimination · (ability − difficulty)). A row has one ability per subject, and
    the ``level`` of a feature is its difficulty plus noise.

    >>> synthetic_responses(100, 50).kinds
    Kinds(50 binary)
    """
    _check(rows, features, density)
    rng = np.random.default_rng(seed)
    subject = rng.integers(len(SUBJECTS), size=features)
    difficulty = 0.5 * rng.normal(size=len(SUBJECTS))[subject] + rng.normal(size=features)
    discrimination = rng.lognormal(0.2, 0.3, size=features)
    ability = rng.normal(size=(rows, 1)) + 0.6 * rng.normal(size=(rows, len(SUBJECTS)))
    at_row, at_feature = _observed(rng, rows, features, density)
    logit = discrimination[at_feature] * (ability[at_row, subject[at_feature]] - difficulty[at_feature])
    right = rng.random(len(at_row)) < 1 / (1 + np.exp(-logit))
    metadata = {
        "subject": pa.array(np.array(SUBJECTS)[subject]),
        "level": pa.array(np.round(difficulty + 0.5 * rng.normal(size=features), 2)),
    }
    return _table(
        "question", at_row, at_feature, right.astype(np.float64), rows, features, metadata, "binary"
    )


def synthetic_diagnoses(rows: int = 500, features: int = 80, density: float = 1.0, seed: int = 0) -> Table:
    """Generate labels, present (1) or absent (0), of a network: diseases → patterns → symptoms.

    A tenth of the features are diseases, a quarter are patterns and the others are symptoms. A disease is
    present at random. A pattern or symptom has one to three causes in the previous layer, and is present
    if one of them causes it, or by chance. About a sixth of all labels are present. There is no metadata.

    >>> synthetic_diagnoses(100, 40).kinds
    Kinds(40 binary)
    """
    _check(rows, features, density)
    rng = np.random.default_rng(seed)
    diseases = max(1, features // 10)
    patterns = max(1, features // 4) if features > 1 else 0
    sizes = (diseases, patterns, max(0, features - diseases - patterns))
    layers = [rng.random((rows, diseases)) < rng.uniform(0.05, 0.25, size=diseases)]
    for size in sizes[1:]:
        layers.append(_next_layer(rng, layers[-1], size))
    present = np.concatenate(layers, axis=1)[:, :features]
    at_row, at_feature = _observed(rng, rows, features, density)
    values = present[at_row, at_feature].astype(np.float64)
    return _table("label", at_row, at_feature, values, rows, features, {}, "binary")


def synthetic_mixed(rows: int = 200, features: int = 30, density: float = 0.6, seed: int = 0) -> Table:
    """Generate a small survey: binary, rating (0 to 10) and real features in turn, with two factors.

    >>> synthetic_mixed(60, 6).kinds.summary()
    '2 binary, 2 rating:0:10, 2 real'
    """
    _check(rows, features, density)
    rng = np.random.default_rng(seed)
    kind = np.arange(features) % 3
    loadings, factors = rng.normal(size=(features, 2)), rng.normal(size=(rows, 2))
    at_row, at_feature = _observed(rng, rows, features, density)
    score = np.einsum("nr,nr->n", factors[at_row], loadings[at_feature]) + 0.5 * rng.normal(size=len(at_row))
    values = np.choose(kind[at_feature], [score > 0, np.clip(np.rint(5 + 2 * score), 0, 10), 20 + 5 * score])
    metadata = {
        "topic": pa.array(np.where(loadings[:, 0] > 0, "habits", "health")),
        "weight": pa.array(np.round(loadings[:, 1], 2)),
    }
    texts = ("binary", "rating:0:10", "real:20:7.5")
    kinds = {f"item {j}": texts[k] for j, k in enumerate(kind)}
    return _table("item", at_row, at_feature, values, rows, features, metadata, kinds)


def _next_layer(rng: np.random.Generator, causes: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Draw the next layer of a network (rows, size): each label is a noisy "or" of one to three causes."""
    chosen = rng.random((size, causes.shape[1])).argsort(1).argsort(1) < rng.integers(1, 4, size=(size, 1))
    strength = np.where(chosen, rng.uniform(0.2, 0.8, size=chosen.shape), 0.0)
    log_absent = np.log1p(-strength) @ causes.T.astype(np.float64) + np.log1p(-0.02)
    present: NDArray[np.bool_] = rng.random((size, len(causes))) > np.exp(log_absent)
    return present.T


def _observed(
    rng: np.random.Generator, rows: int, features: int, density: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the observed cells: the row and the feature of each, (n,) and (n,)."""
    # The gaps between observed cells are geometric. Drawing gaps needs memory for observed cells only.
    expected = rows * features * density
    gaps = rng.geometric(density, size=int(expected + 8 * np.sqrt(expected) + 16))
    cells = np.cumsum(gaps) - 1
    at_row, at_feature = np.divmod(cells[cells < rows * features], features)
    return at_row, at_feature


def _check(rows: int, features: int, density: float) -> None:
    if rows < 1 or features < 1 or not 0 < density <= 1:
        raise InputError(
            "rows and features must be at least 1, and density must be above 0 and at most 1; "
            f"got rows={rows}, features={features}, density={density:g}"
        )


def _table(
    noun: str,
    at_row: NDArray[np.int64],
    at_feature: NDArray[np.int64],
    values: NDArray[np.float64],
    rows: int,
    features: int,
    metadata: dict[str, pa.Array],
    kinds: str | dict[str, str],
) -> Table:
    feature_names = pa.array([f"{noun} {j}" for j in range(features)])
    row_names = pa.array([f"row {i}" for i in range(rows)])
    long = pa.table(
        {
            "row": pa.DictionaryArray.from_arrays(at_row.astype(np.int32), row_names),
            "feature": pa.DictionaryArray.from_arrays(at_feature.astype(np.int32), feature_names),
            "value": np.asarray(values, dtype=np.float64),
        }
    )
    described = pa.table({"feature": feature_names, **metadata}) if metadata else None
    return Table.read(long, metadata=described, kinds=kinds)
