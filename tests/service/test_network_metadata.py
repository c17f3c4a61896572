"""Texts and images for networks over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart import Headstart
from tests.adapters.test_metadata_networks import described_table
from tests.service.conftest import Start

QUICK = {"pretraining": {"epochs": 2}, "metatraining": {"epochs": 1}, "quiet": True}


@pytest.mark.parametrize(
    ("column", "column_type", "value", "wrong"),
    [
        ("icon", "image", [[0.5] * 6] * 6, [[0.5] * 6, [1] * 5]),
        ("title", "tokens", "good w1", [[1, 2]]),
    ],
)
def test_features_have_texts_and_images(
    column: str, column_type: str, value: object, wrong: object, start: Start, tmp_path: Path
) -> None:
    model = Headstart("factorisation", "chn", **QUICK).fit(described_table(column, column_type))
    model.save(tmp_path / "model")
    client = start(tmp_path / "model")
    assert client.get("/v1/schema").json()["features"] == [{"name": column, "type": column_type}]
    answer = client.post("/v1/features", json={"name": "new", "metadata": {column: value}})
    assert answer.status_code == 201
    model.add_feature("new", metadata={column: value})
    answer = client.post("/v1/predict", json={"rows": [model.rows[0]], "features": ["new"]})
    expected = model.predict([model.rows[0]], ["new"]).mean[0, 0]
    assert answer.json()["predictions"][0]["mean"] == pytest.approx(expected, rel=1e-6)
    answer = client.post("/v1/features", json={"name": "other", "metadata": {column: wrong}})
    assert answer.status_code == 422
