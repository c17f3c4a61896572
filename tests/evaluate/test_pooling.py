"""Rubin's rules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headstart.errors import InputError
from headstart.evaluate.pooled_estimates import pool


def test_rubins_rules_by_hand() -> None:
    pooled = pool([2.0, 4.0, 3.0], [1.0, 2.0, 3.0])
    between = 1.0
    total = 2.0 + (1 + 1 / 3) * between
    assert pooled.estimate == 3.0
    assert pooled.std_error == pytest.approx(math.sqrt(total))
    assert pooled.degrees == pytest.approx(2 * (1 + 2.0 / (4 / 3)) ** 2)
    assert pooled.missing_information == pytest.approx((4 / 3) / total)
    low, high = pooled.interval(0.95)
    assert low + high == pytest.approx(6.0)
    assert high - 3 > 1.96 * pooled.std_error  # the t distribution has heavier tails


def test_equal_estimates_are_those_of_complete_data() -> None:
    pooled = pool([1.0, 1.0], [0.25, 0.25])
    assert (pooled.std_error, pooled.degrees) == (0.5, math.inf)
    assert pooled.interval(0.95)[1] == pytest.approx(1 + 0.5 * 1.959964, rel=1e-6)
    small = pool([1.0, 1.0], [0.25, 0.25], degrees=9)
    assert small.degrees == pytest.approx(10 / 12 * 9)


def test_small_samples_limit_the_degrees_of_freedom() -> None:
    estimates, variances = np.random.default_rng(0).normal(size=50), np.ones(50)
    unlimited, limited = pool(estimates, variances), pool(estimates, variances, degrees=20)
    assert limited.degrees < min(20, unlimited.degrees)
    assert limited.std_error == unlimited.std_error


@pytest.mark.parametrize(
    ("estimates", "variances"),
    [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [1.0, -1.0]), ([1.0, math.nan], [1.0, 1.0])],
)
def test_what_cannot_be_pooled(estimates: list[float], variances: list[float]) -> None:
    with pytest.raises(InputError):
        pool(estimates, variances)


def test_levels() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        pool([1.0, 2.0], [1.0, 1.0]).interval(95)
