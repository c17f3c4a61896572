from __future__ import annotations

import numpy as np
import pytest

from headstart.datasets import synthetic_diagnoses, synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.errors import InputError

GENERATORS = [synthetic_ratings, synthetic_responses, synthetic_mixed, synthetic_diagnoses]


@pytest.mark.parametrize("make", GENERATORS)
def test_the_seed_determines_the_table(make):
    assert make(50, 20, seed=3) == make(50, 20, seed=3)
    assert make(50, 20, seed=3) != make(50, 20, seed=4)


@pytest.mark.parametrize("make", GENERATORS)
@pytest.mark.parametrize("density", [0.2, 0.5, 1.0])
def test_size_and_density(make, density):
    table = make(200, 60, density)
    assert table.shape == (200, 60)
    assert table.density == pytest.approx(density, abs=0.02)
    assert (table.encoded_metadata().shape[1] > 0) == (make is not synthetic_diagnoses)


def test_rows_without_observations_are_left_out():
    table = synthetic_ratings(200, 20, 0.02)
    assert len(table.rows) == len(np.unique(table.row_index)) < 200
    assert len(table.features) == 20


@pytest.mark.parametrize("make", GENERATORS)
@pytest.mark.parametrize("wrong", [(0, 5, 0.5), (5, 0, 0.5), (5, 5, 0.0), (5, 5, 1.5)])
def test_impossible_sizes_are_an_error(make, wrong):
    with pytest.raises(InputError, match="rows and features must be at least 1"):
        make(*wrong)


def test_ratings_have_the_given_rank_plus_noise():
    table = synthetic_ratings(400, 100, 1.0, rank=2)
    dense = table.cells().values.numpy().reshape(400, 100)
    spectrum = np.linalg.svd(
        dense - dense.mean(0) - dense.mean(1, keepdims=True) + dense.mean(), compute_uv=False
    )
    assert spectrum[1] > 2 * spectrum[2]


def test_answers_depend_on_ability_and_difficulty():
    table = synthetic_responses(400, 100, 1.0)
    dense = table.values.reshape(400, 100)
    first, second = dense[:, ::2].mean(1), dense[:, 1::2].mean(1)
    assert np.corrcoef(first, second)[0, 1] > 0.7
    level = table.metadata.column("level").to_numpy()
    assert np.corrcoef(level, dense.mean(0))[0, 1] < -0.6


def test_memory_depends_on_the_observed_cells_only():
    assert len(synthetic_ratings(20_000, 10_000, 0.0002)) == pytest.approx(40_000, rel=0.05)


def test_labels_of_a_network_are_rare_and_correlated():
    table = synthetic_diagnoses(2000, 80)
    dense = table.values.reshape(2000, 80)[:, dense_order(table)]
    assert 0.1 < dense.mean() < 0.25
    correlation = np.abs(np.corrcoef(dense.T) - np.eye(80))
    assert (correlation.max(1) > 0.2).mean() > 0.8
    assert np.median(correlation) < 0.1


def dense_order(table):
    return np.argsort([int(name.split()[1]) for name in table.features])
