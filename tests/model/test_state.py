"""Units of features that find their scale: many at once as each by itself."""

from __future__ import annotations

import numpy as np
from tests.oracles.units import unit_of

from headstart.model.features import Feature
from headstart.model.state import find_units
from headstart.table import Kind

MIDDLE = Kind.real(2.0, 3.0)


def feature(values: list[float], *, finds: bool = True) -> Feature:
    seen = np.array(values, dtype=np.float64)
    return Feature("f", MIDDLE, False, len(seen), np.zeros(0, np.float32), np.arange(len(seen)), seen, finds)


def test_many_are_as_each_by_itself() -> None:
    random = np.random.default_rng(0)
    lists = [
        (10 ** random.uniform(-6, 6) * random.normal(size=n)).tolist() for n in (1, 2, 3, 4, 5, 10, 10, 33)
    ]
    lists += [[0.0], [-2.5e-20], [1e-9, 1e-9], [7.0] * 5, [0.0] * 4, [1.0, 1.0, 1.0, 1.0, 1e9], [5.0, 5.0]]
    found = find_units([feature(each) for each in lists], MIDDLE)
    for own, values in zip(found, lists, strict=True):
        assert own.kind == unit_of(np.array(values), MIDDLE)
        assert find_units([feature(values)], MIDDLE)[0].kind == own.kind


def test_others_stay_as_they_are() -> None:
    empty, fixed, known = feature([]), feature([1.0, 2.0]), feature([1.0, 2.0], finds=False)
    assert find_units([empty, known], MIDDLE) == [empty, known]
    assert find_units([fixed], None) == [fixed]
