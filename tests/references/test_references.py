"""Every backbone and adapter family still predicts what it predicted when its numbers were stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from headstart.model import Headstart
from tests.references.cases import CASES, fitted, folder_answers, predictions
from tests.references.make import FOLDERS, STORED

TOLERANCE = 1e-5  # rounding differs between processors, and training carries it on


@pytest.mark.parametrize("case", CASES)
def test_predictions_are_as_stored(case: str) -> None:
    stored = json.loads(STORED.read_text())[case]["predictions"]
    for name, mean, std in predictions(fitted(case)):
        np.testing.assert_allclose(mean, stored[name]["mean"], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        np.testing.assert_allclose(std, stored[name]["std"], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("folder", ["format-1", "format-1-chn"])
def test_saved_models_of_every_format_predict_as_they_did(folder: str, tmp_path: Path) -> None:
    stored = json.loads((FOLDERS / f"{folder}.json").read_text())
    shutil.copytree(FOLDERS / folder, tmp_path / "m")
    model = Headstart.load(tmp_path / "m")
    model.save(tmp_path / "m")  # in today's format
    for each in (model, Headstart.load(tmp_path / "m")):
        for name, found in folder_answers(each).items():
            np.testing.assert_allclose(found.mean, stored[name]["mean"], rtol=1e-6, err_msg=name)
            np.testing.assert_allclose(found.std, stored[name]["std"], rtol=1e-6, err_msg=name)
