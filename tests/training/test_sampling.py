"""What meta-training draws at random, against slow, obvious versions."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algebra.test_sparse import lines_of
from tests.training.test_episodes import batch_of

from headstart.training.episodes import (
    draw_features,
    draw_shots,
    feature_weights,
    random_part,
    shuffle_observations,
    usual_weights,
)


def test_shots_drawn_by_their_logarithm_favour_few() -> None:
    batch = batch_of([40] * 300, seed=0)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.cat([draw_shots(batch, 32, generator, "log") for _ in range(40)])
    assert int(drawn.min()) == 0
    assert int(drawn.max()) == 32
    for most in range(32):  # P(shots ≤ k) = log(k + 2) / log(34)
        share = float((drawn <= most).double().mean())
        assert abs(share - math.log(most + 2) / math.log(34)) < 0.02
    few = draw_shots(batch_of([0, 1, 5], seed=0), 32, generator, "log")
    assert bool((few <= torch.tensor([0, 0, 4])).all())


def test_feature_weights_go_from_popularity_to_evenness() -> None:
    counts = torch.tensor([1, 10, 100, 1000])
    for power in (0.0, 0.5, 1.0):
        for shots in (0, 1, 15, 10_000):
            usual = usual_weights(counts.repeat(2), shots, power)
            found = feature_weights(torch.full((4,), shots), counts, usual, power)
            exponent = power + (1 - power) / math.sqrt(1 + shots)
            mean = sum(n**exponent for n in counts.tolist()) / 4
            for weight, n in zip(found.tolist(), counts.tolist(), strict=True):
                drawn = n**power  # how often, in proportion
                assert abs(drawn * weight - n**exponent / mean) < 1e-4 * max(1, drawn * weight)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_features_are_drawn_in_proportion_to_a_power_of_their_counts(power: float) -> None:
    counts = torch.tensor([400, 1, 9, 100, 0 if power else 1, 25])
    generator = torch.Generator().manual_seed(0)
    shares = counts.double() ** power / (counts.double() ** power).sum()
    drawn = [draw_features(counts, 10, power, generator) for _ in range(2000)]
    found = torch.stack([torch.bincount(each, minlength=6) for each in drawn])
    assert bool((found.sum(1) == 10).all())
    torch.testing.assert_close(found.double().mean(0) / 10, shares, atol=0.01, rtol=0)
    # in each draw every feature occurs about as often as it should
    assert bool(((found - 10 * shares).abs() < 2).all())
    first = torch.bincount(torch.stack(drawn)[:, 0], minlength=6) / 2000
    torch.testing.assert_close(first.double(), shares, atol=0.05, rtol=0)


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    most=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_part_of_each_line_is_drawn(counts: list[int], most: int, seed: int) -> None:
    cells, generator = batch_of(counts, seed).cells, torch.Generator().manual_seed(seed)
    mixed = shuffle_observations(cells, generator)
    whole = lines_of(cells)
    assert [sorted(line) for line in lines_of(mixed)] == [sorted(line) for line in whole]
    lines = torch.tensor([len(counts) - 1, 0, 0])
    part = lines_of(random_part(mixed, lines, most, generator))
    for line, own in zip(lines.tolist(), part, strict=True):
        assert len(own) == len(set(own)) == min(most, counts[line])
        assert set(own) <= set(whole[line])


def test_every_part_is_as_likely() -> None:
    cells, generator = batch_of([5], 0).cells, torch.Generator().manual_seed(0)
    pairs = Counter(
        frozenset(
            lines_of(random_part(shuffle_observations(cells, generator), torch.tensor([0]), 2, generator))[0]
        )
        for _ in range(2000)
    )
    assert len(pairs) == 10
    assert all(150 < times < 250 for times in pairs.values())
