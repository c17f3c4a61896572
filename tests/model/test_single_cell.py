"""Single cells are predicted as ``Headstart.predict`` does."""

from __future__ import annotations

import numpy as np
import pytest
from tests.faults.models import fresh
from tests.states import state_of

from headstart.model import Headstart
from headstart.model.cell_predictions import predict_one_cell


@pytest.mark.parametrize("kind", ["rating", "binary", "real"])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.97])
def test_a_cell_is_that_of_predict(kind: str, level: float) -> None:
    model = fresh(kind)
    values = {"rating": [5, 1, 3], "binary": [1, 0, 1], "real": [0.5, -2.0, 1.0]}[kind]
    model.add_feature("none")
    model.add_feature("new", observations=dict(zip(["u1", "u2", "u3"], values, strict=True)))
    model.add_rows({"someone": {"f1": values[0], "new": values[1]}})
    rows, features = ["u1", "u9", "someone"], ["f1", "none", "new"]
    expected = model.predict(rows, features)
    low, high = expected.interval(level)
    found = np.array(
        [[predict_one_cell(state_of(model), row, name, level) for name in features] for row in rows]
    )
    np.testing.assert_allclose(found[:, :, 0], expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[:, :, 1], expected.std, rtol=1e-5)
    np.testing.assert_allclose(found[:, :, 2], low, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[:, :, 3], high, rtol=1e-5, atol=1e-5)


def test_a_cell_of_an_adapter_without_uncertainty() -> None:
    from tests.faults.models import table

    model = Headstart(adapter="mean-head", quiet=True).fit(table("rating"))
    expected = model.predict(["u1"], ["f1"])
    found = predict_one_cell(state_of(model), "u1", "f1", 0.9)
    assert found.mean == pytest.approx(expected.mean[0, 0], rel=1e-5)
    assert found.std == pytest.approx(expected.std[0, 0], rel=1e-5)
